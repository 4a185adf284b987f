"""The command: `dlsys watch train.py ARGS`, without the course `dlsys-watch train.py ARGS`.

`dlsys watch explain RULE` says what a rule finds, without a network and without torch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path

from dlsys_watch import __version__, baseline, places, script
from dlsys_watch.formats import EXPLANATIONS, FORMATS, link
from dlsys_watch.frames import hidden
from dlsys_watch.settings import Settings, SettingsError

FOUND, BAD_INPUT = 3, 2
EPILOG = ("The exit status is the script's. With --strict it is 3 if something was found that is "
          "not in the baseline; hints count if you asked for them. It is 2 for bad input. "
          "A line with the comment `# dlsys: ok RULE` is left alone. [tool.dlsys.watch] in "
          "pyproject.toml may contain silence = [...] and hints = true. DLSYS_BOOK is the address "
          "of the pages that findings link to.")


def name() -> str:
    """The command as it was typed: without the course there is no `dlsys`."""
    typed = Path(sys.argv[0])
    if typed.name == "__main__.py" and typed.parent.name == "dlsys_watch":
        return "python -m dlsys_watch"
    return "dlsys-watch" if typed.stem == "dlsys-watch" else "dlsys watch"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog=name(), epilog=EPILOG,
                                  description="Run a training script and say where it has a "
                                              "silent fault. `explain RULE` instead of a script "
                                              "says what a rule finds.")
    top.add_argument("--version", action="version", version=f"dlsys-watch {__version__}")
    top.add_argument("--json", metavar="FILE", type=Path, help="write the findings to this file")
    top.add_argument("--format", choices=FORMATS, default="text", dest="form",
                     help="format of the lines, or of the file of --output: github for "
                          "annotations, json for one object per line, sarif for code scanning "
                          "(with --output)")
    top.add_argument("--output", metavar="FILE", type=Path,
                     help="write the findings to this file in that format")
    top.add_argument("--baseline", metavar="FILE", type=Path,
                     help="neither report nor count the findings in this file")
    top.add_argument("--write-baseline", metavar="FILE", type=Path, dest="new_baseline",
                     help="write the findings of this run to a baseline file")
    top.add_argument("--hints", action="store_true", help="also report hints, which may be wrong")
    top.add_argument("--strict", action="store_true", help="exit status 3 if something was found")
    top.add_argument("--silence", metavar="RULE", action="append", default=[],
                     help="leave out a rule; may be given several times")
    top.add_argument("--steps", metavar="N", type=int,
                     help="watch N optimizer steps, then leave torch as it was")
    top.add_argument("--rules", action="store_true", help="list the rules and stop")
    top.add_argument("--debug", action="store_true", help="say at the end which rules failed")
    top.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m")
    top.add_argument("script", nargs="?", help="the script to run")
    top.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    return top


@hidden  # type: ignore[arg-type]
def main(argv: list[str] | None = None) -> int:
    """Run a script under the watch. Returns 0, or 3 with --strict; 2 for bad input.

    The script's own SystemExit and errors come out of this function.
    """
    asked = parser().parse_args(argv)
    try:
        if asked.rules:
            return show_rules()
        if asked.script == "explain" and not asked.module and not os.path.exists("explain"):
            return explain(asked.arguments)
        settings = settings_of(asked)
    except SettingsError as error:
        print(places.printable(f"{name()}: {error}"), file=sys.stderr)
        return BAD_INPUT
    return watched(asked, settings)


def settings_of(asked) -> Settings:
    """What was asked for, with the file's settings. Raises SettingsError."""
    if asked.script is None:
        raise SettingsError("no script given, expected a file such as train.py. "
                            f"See: {name()} --help")
    if asked.steps is not None and asked.steps < 1:
        raise SettingsError(f"--steps {asked.steps}: expected at least 1. Leave it out to watch "
                            "the whole run.")
    if not asked.module and not os.path.isfile(asked.script):
        raise SettingsError(f"got {asked.script}, expected the file of a script. Check the path.")
    if asked.form == "sarif" and asked.output is None:
        raise SettingsError("--format sarif: expected --output FILE, as it is one document. "
                            "Add --output watch.sarif")
    if asked.new_baseline is not None and asked.new_baseline.exists():
        baseline.read(asked.new_baseline)   # another file is not overwritten
    settings = Settings(hints=asked.hints, strict=asked.strict, debug=asked.debug,
                        steps=asked.steps, silence=frozenset(asked.silence), form=asked.form,
                        baseline=asked.baseline.absolute() if asked.baseline else None,
                        json=target("--json", asked.json), output=target("--output", asked.output),
                        new_baseline=target("--write-baseline", asked.new_baseline)
                        ).with_file(Path.cwd())
    if settings.baseline is not None:
        baseline.read(settings.baseline)
    if settings.silence:
        known = rule_ids()
        if wrong := settings.silence - known:
            raise SettingsError(f"no rule {min(wrong)!r}. See: {name()} --rules")
    return settings


def target(option: str, file: Path | None) -> Path | None:
    """Where to write a file: each further rank has one of its own. Raises SettingsError."""
    if file is None:
        return None
    if int(os.environ.get("RANK") or 0) > 0:
        file = file.with_name(f"{file.name}.rank{os.environ['RANK']}")
    if not file.absolute().parent.is_dir():
        raise SettingsError(f"{option} {file}: there is no folder {file.absolute().parent}. "
                            "Make it first.")
    return file.absolute()


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


def explain(names: list[str]) -> int:
    """What a rule finds: its trap, a line that is broken, and the line repaired."""
    told = json.loads(EXPLANATIONS.read_text("utf-8"))
    if len(names) != 1 or names[0] not in told:
        raise SettingsError(f"explain {' '.join(names)}: expected the name of one rule, such as "
                            f"softmax-twice. See: {name()} --rules")
    rule = told[names[0]]
    print(f"{names[0]}: {'sound' if rule['sound'] else 'a hint, which may be wrong'}. "
          f"Trap {rule['trap']}, {rule['title']}")
    print(f"What it finds:    {rule['finds']}")
    print(f"What it reads:    {rule['reads']}")
    for broken, repaired in rule["lines"]:
        print(f"Broken:           {broken or '(a line is missing)'}")
        print(f"Repaired:         {repaired or '(leave it out)'}")
    print(f"If it is meant:   # dlsys: ok {names[0]}   on that line")
    if page := link(rule["trap"]):
        print(f"The trap's page:  {page}")
    return 0


@hidden  # type: ignore[arg-type]
def watched(asked, settings: Settings) -> int:
    from dlsys_watch import children
    from dlsys_watch.session import Session

    session = Session(settings)
    session.undo.append(children.follow(session))
    session.attach_with_torch()
    try:
        (script.run_module if asked.module else script.run)(asked.script, asked.arguments)
    except BaseException:
        session.end()
        if settings.strict and session.report.findings:
            raise SystemExit(FOUND) from None
        raise
    session.end()
    return FOUND if settings.strict and session.report.findings else 0
