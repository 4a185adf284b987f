"""The one base of errors whose message tells a user what to do."""


class UserError(Exception):
    """Something that a user can set right. A command prints the message as its only line."""
