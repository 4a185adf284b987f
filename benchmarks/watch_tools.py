"""Other tools on the programs of `tests/watch/corpus`: the faults they name, and other output.

    .venv/bin/python -m venv TOOLS
    TOOLS/bin/pip install --no-deps torch-audit torch-preflight torchfix
    TOOLS/bin/pip install click rich "libcst>=1.5,<1.6"
    .venv/bin/python -m benchmarks.watch_tools TOOLS

A tool finds a fault if one of its rules about the fault's trap (TELLS) reports the program. Its
advice on speed, style, safety or settings (ADVICE) is not an alarm and is counted separately.
Each tool runs at its most talkative: all rules, torch-audit at every step.
"""

from __future__ import annotations

import collections
import contextlib
import importlib.metadata
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import watch_corpus
from benchmarks.watch_corpus import CORPUS, FAULTY, HEALTHY, head, name

RECORD = Path(__file__).with_suffix(".json")

TELLS = {  # rule of a tool -> traps that it is about
    "TG001": ["02.5", "12.6"], "TG002": ["02.5"], "TG003": ["02.1"], "TG005": ["03.1"],
    "TG006": ["03.1"], "TG011": ["01.1"], "TG012": ["09.5"], "TG014": ["02.4"],
    "TA100": ["12.1", "12.5"], "TA102": ["02.1", "03.3"], "TA103": ["01.4", "02.3", "07.10"],
    "TA104": ["02.3", "07.10", "12.2"], "TA105": ["01.4"], "TA303": ["07.9"], "TA402": ["04.1"],
    "TA500": ["02.3", "07.8", "07.10"]}
ADVICE = re.compile(r"TOR|TG00[4789]|TG01[03]|TA000|TA2|TA40|TA304|TA501")
NOT_MEASURED = {"traincheck 0.2.0": "its collection of traces stops on a machine without an NVIDIA "
                                    "driver, and it needs a healthy run of each program"}
MADE = re.compile(r"^( *)((?:self\.)?\w+) = (?:\w+ or )?(?:torch\.)?optim\.\w+\((?:\[.* for p in )?"
                  r"((?:self\.)?\w+)(?:\[\d\])?\.parameters\(\).*$", re.MULTILINE)
AUDITED = """{0}AUDITORS.append(AUTOPATCH({2}, optimizer={1}, every_n_steps=1, reporters=[],
{0}                          fail_level="FATAL"))"""


def linted(command: list[str], pattern: str) -> dict[str, list[str]]:
    """Codes that a static tool reports for each program."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(CORPUS, folder, dirs_exist_ok=True)
        done = subprocess.run([*command, folder], capture_output=True, text=True, cwd=folder,
                              check=False)
    found = collections.defaultdict(list)
    for program, code in re.findall(pattern, done.stdout):
        found[program].append(code)
    if not found:
        raise SystemExit(f"{command} reported nothing: {done.stdout[-300:]} {done.stderr[-300:]}")
    return found


def audited(path: Path) -> list[str] | str:
    """What torch-audit finds while a program runs, for each model with an optimizer."""
    from torch_audit import autopatch

    auditors, source = [], path.read_text("utf-8")
    if not MADE.search(source):
        return "no optimizer of a model's parameters"
    source = MADE.sub(lambda m: f"{m[0]}\n{AUDITED.format(m[1], m[2], m[3])}", source)
    names = {"__name__": "__main__", "AUDITORS": auditors, "AUTOPATCH": autopatch}
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(source, str(path), "exec"), names)
            reports = [auditor.finish(report=False) for auditor in auditors]
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    return [finding.rule_id for report in reports for finding in report.findings]


def found(codes: list[str], traps: list[str]) -> bool:
    return any(trap in traps for code in codes for trap in TELLS.get(code, ()))


def summary(said: dict[str, list[str]], not_run: dict[str, str]) -> dict:
    """Faults found, healthy programs with an alarm, and those with only advice."""
    def alarmed(path):
        return any(not ADVICE.match(code) for code in said.get(name(path), ()))

    return {"faulty": sum(name(path) not in not_run for path in FAULTY),
            "healthy": sum(name(path) not in not_run for path in HEALTHY),
            "found": [path.stem for path in FAULTY
                      if found(said.get(name(path), []), head(path)[1])],
            "other": [path.stem for path in FAULTY if alarmed(path)
                      and not found(said[name(path)], head(path)[1])],
            "alarms": [path.stem for path in HEALTHY if alarmed(path)],
            "advice": sum(bool(said.get(name(path))) and not alarmed(path) for path in HEALTHY)}


def main() -> None:
    tools = Path(sys.argv[1]).absolute()
    packages, = tools.glob("lib/python*/site-packages")
    sys.path.append(str(packages))
    import torch

    torch.set_num_threads(1)
    said = {"torch-preflight": linted([str(tools / "bin/torch-preflight"), "check", "-f", "github"],
                                      r"file=\S*?((?:faulty|healthy)/\w+)\.py.*?title=(TG\d+)"),
            "torchfix": linted([str(tools / "bin/torchfix"), "--select=ALL"],
                               r"((?:faulty|healthy)/\w+)\.py:\d+:\d+: (\w+)")}
    ran = {name(path): watch_corpus.apart(audited, path) for path in FAULTY + HEALTHY}
    said["torch-audit"] = {program: codes for program, codes in ran.items()
                           if isinstance(codes, list)}
    not_run = {"torch-audit": {program: why for program, why in ran.items()
                               if isinstance(why, str)}}
    record = {"tools": {
        tool: {"version": importlib.metadata.version(tool),
               **summary(codes, not_run.get(tool, {})),
               "said": {program: sorted(set(codes[program])) for program in sorted(codes)
                        if codes[program]},
               "not_run": not_run.get(tool, {})}
        for tool, codes in sorted(said.items())}, "not_measured": NOT_MEASURED}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    for tool, row in record["tools"].items():
        print(tool, {key: row[key] for key in ("version", "found", "other", "alarms", "advice")},
              row["not_run"])


if __name__ == "__main__":
    main()
