"""The command: `dlsys watch train.py ARGS`, without the course `dlsys-watch train.py ARGS`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from dlsys_watch import script
from dlsys_watch.settings import Settings, SettingsError

FOUND, BAD_INPUT = 3, 2
EPILOG = ("A line with the comment `# dlsys: ok RULE` is left alone. [tool.dlsys.watch] in "
          "pyproject.toml may hold silence = [...] and hints = true. DLSYS_BOOK: address of the "
          "pages that findings link.")


def name() -> str:
    """The command as it was typed: without the course there is no `dlsys`."""
    return "dlsys-watch" if Path(sys.argv[0]).stem == "dlsys-watch" else "dlsys watch"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog=name(), epilog=EPILOG,
                                  description="Run a training script and say where it shows a "
                                              "silent fault.")
    top.add_argument("--json", metavar="FILE", type=Path, help="write the findings to this file")
    top.add_argument("--hints", action="store_true", help="rules that guess, too")
    top.add_argument("--strict", action="store_true", help="exit status 3 where one was found")
    top.add_argument("--silence", metavar="RULE", action="append", default=[],
                     help="leave out a rule; may be given several times")
    top.add_argument("--rules", action="store_true", help="list the rules and stop")
    top.add_argument("--debug", action="store_true", help="say at the end which rules failed")
    top.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m")
    top.add_argument("script", nargs="?", help="the script to run")
    top.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    return top


def main(argv: list[str] | None = None) -> int:
    """Run a script under the watch. Returns 0, or 3 with --strict; 2 for bad input.

    The script's own SystemExit and errors come out of this function.
    """
    asked = parser().parse_args(argv)
    try:
        if asked.rules:
            return show_rules()
        settings = settings_of(asked)
    except SettingsError as error:
        print(f"{name()}: {error}", file=sys.stderr)
        return BAD_INPUT
    return watched(asked, settings)


def settings_of(asked) -> Settings:
    """What was asked for, with the file's settings. Raises SettingsError."""
    if asked.script is None:
        raise SettingsError("no script given, expected a file such as train.py. "
                            f"See: {name()} --help")
    if not asked.module and not os.path.isfile(asked.script):
        raise SettingsError(f"got {asked.script}, expected the file of a script. Check the path.")
    target = asked.json
    if target is not None and int(os.environ.get("RANK") or 0) > 0:
        target = target.with_name(f"{target.name}.rank{os.environ['RANK']}")
    if target is not None and not target.absolute().parent.is_dir():
        raise SettingsError(f"--json {target}: there is no folder {target.absolute().parent}. "
                            "Make it first.")
    settings = Settings(hints=asked.hints, strict=asked.strict, debug=asked.debug,
                        silence=frozenset(asked.silence),
                        json=target.absolute() if target else None).with_file(Path.cwd())
    if settings.silence:
        known = rule_ids()
        if wrong := settings.silence - known:
            raise SettingsError(f"no rule {min(wrong)!r}. See: {name()} --rules")
    return settings


def rule_ids() -> set[str]:
    """The names of all rules, read from their files: torch is not imported for it."""
    folder = Path(__file__).parent / "rules"
    return {found for file in folder.glob("*.py")
            for found in re.findall(r'^    id, trap.* = "([a-z0-9-]+)"', file.read_text("utf-8"),
                                    re.MULTILINE)} | {"all"}


def show_rules() -> int:
    from dlsys_watch.rules import all_rules

    for rule in all_rules():
        print(f"{rule.id:<30} {rule.trap:<6} {'sound' if rule.sound else 'hint ':<6} reads "
              f"{rule.reads}")
    return 0


def watched(asked, settings: Settings) -> int:
    from dlsys_watch import children
    from dlsys_watch.session import Session

    session = Session(settings)
    undo = children.follow(session)
    session.attach_with_torch()
    try:
        (script.run_module if asked.module else script.run)(asked.script, asked.arguments)
    except BaseException:
        finish(session, undo)
        if settings.strict and session.report.findings:
            raise SystemExit(FOUND) from None
        raise
    finish(session, undo)
    return FOUND if settings.strict and session.report.findings else 0


def finish(session, undo) -> None:
    undo()
    session.end()
