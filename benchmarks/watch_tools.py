"""Other tools on the same small programs: which faults they tell, which healthy ones they disturb.

    pip install --no-deps --target TOOLS torch-audit torch-preflight torchfix libcst
    PYTHONPATH=TOOLS .venv/bin/python -m benchmarks.watch_tools TOOLS

A tool tells a fault where it says something of the broken program that it does not say of the
repaired one. These programs were written with the rules of `dlsys watch`, so its own figures here
are no measure of it.
"""

import collections
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path(__file__).with_suffix(".json")
GIVEN = """import copy
import torch
import torch.nn as nn
import torch.nn.functional as F
torch.manual_seed(0)
def net(outputs=3, inputs=10):
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))
x, y, t = torch.randn(64, 10), torch.randint(3, (64,)), torch.randn(64)
"""
MADE = re.compile(r"^opt = .*$", re.MULTILINE)
AUDIT = """
from torch_audit import autopatch as _autopatch
_auditor = _autopatch(model, optimizer=opt, every_n_steps=1, reporters=[], fail_level="FATAL")
"""
MARK = re.compile(r"\s*#\s*(found|repaired:).*$", re.MULTILINE)


def programs() -> dict[str, str]:
    """name -> source: broken/NAME, repaired/NAME, healthy/NAME."""
    sys.path.insert(0, str(ROOT / "tests" / "watch"))
    import faults
    import healthy

    found = {}
    for path in faults.FAULTS:
        if faults.rule_of(path).sound:
            source = path.read_text("utf-8")
            found[f"broken/{path.stem}"] = MARK.sub("", source)
            found[f"repaired/{path.stem}"] = MARK.sub("", faults.repaired(source))
    for path in healthy.HEALTHY:
        found[f"healthy/{path.stem}"] = path.read_text("utf-8")
    return {name: GIVEN + source for name, source in found.items()}


def linted(command: list[str], pattern: str, sources: dict[str, str]) -> dict[str, list[str]]:
    """Codes that a static tool reports for each program."""
    with tempfile.TemporaryDirectory() as folder:
        for name, source in sources.items():
            file = Path(folder, f"{name}.py")
            file.parent.mkdir(exist_ok=True)
            file.write_text(source)
        done = subprocess.run([*command, folder], capture_output=True, text=True, cwd=folder,
                              check=False)
    found = collections.defaultdict(list)
    for name, code in re.findall(pattern, done.stdout):
        found[name].append(code)
    if not found:
        print(command, done.stdout[-400:], done.stderr[-400:], file=sys.stderr)
    return found


def audited(sources: dict[str, str]) -> dict[str, list[str]]:
    """What torch-audit finds at run time, where a program has one model and one optimizer."""
    found = {}
    for name, source in sources.items():
        made = list(MADE.finditer(source))
        if not made or not re.search(r"^model = ", source, re.MULTILINE):
            continue
        source = source[:made[-1].end()] + AUDIT + source[made[-1].end():]
        names = {"__name__": "__main__"}
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(source, name, "exec"), names)
                result = names["_auditor"].finish(report=False)
            found[name] = [finding.rule_id for finding in result.findings]
        except Exception as error:
            print(name, type(error).__name__, str(error)[:100], file=sys.stderr)
    return found


def summary(found: dict[str, list[str]], sources) -> dict:
    faults = [name for name in sources if name.startswith("broken/")]
    told = [name for name in faults
            if set(found.get(name, ())) - set(found.get(name.replace("broken", "repaired"), ()))]
    disturbed = [name for name in sources if name.startswith("healthy/") and found.get(name)]
    return {"told": sorted(name.partition("/")[2] for name in told), "of": len(faults),
            "healthy_with_a_finding": len(disturbed),
            "healthy": sum(name.startswith("healthy/") for name in sources),
            "codes": collections.Counter(code for codes in found.values() for code in set(codes))}


def main() -> None:
    tools, sources = Path(sys.argv[1]).absolute(), programs()
    run = [sys.executable]
    os.environ["PYTHONPATH"] = str(tools)
    name = r"((?:broken|repaired|healthy)/\w+)\.py"
    record = {
        "torchfix": summary(linted([*run, str(tools / "bin/torchfix"), "--select=ALL"],
                                   name + r":\d+:\d+: (\w+)", sources), sources),
        "torch-preflight": summary(linted([*run, str(tools / "bin/torch-preflight"), "check"],
                                          name + r".*?\b(TG\d+)", sources), sources),
        "torch-audit": summary(audited(sources), sources)}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
