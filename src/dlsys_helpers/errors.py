"""The bases of errors whose message is all that a user needs to see."""


class OneLine:
    """Mixed into an error class: a notebook shows the message alone, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class UserError(OneLine, Exception):
    """Something that a user can fix. A command prints the message as its only line."""
