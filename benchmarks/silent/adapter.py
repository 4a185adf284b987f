"""An adapter of SilentTraps: fill in `decide`, then run it from the root of the course with

    .venv/bin/python -m benchmarks.silent run "python my_adapter.py"

Each case has its own process. It gets a line of JSON on standard input and prints one on standard
output; it needs nothing else of the benchmark, so an adapter may be in any language. What `decide`
prints goes to standard error.
"""

import json
import sys

OUT, sys.stdout = sys.stdout, sys.stderr


def send(message):
    print(json.dumps(message), file=OUT, flush=True)


def probe(name):
    """Buy what a probe measures, in the form "probes"; case["probes"] lists names and prices.

    Returns {"numbers": {...}, "paid": so far}, or {"refused": why}. A second look costs nothing.
    """
    send({"probe": name})
    return json.loads(sys.stdin.readline())


def decide(case):
    """Say whether there is a fault, which, and where.

    case["form"] is one of
      "curves"   case["curves"] of a run, and those of two healthy runs, case["earlier"]
      "probes"   case["probes"], bought with probe(name)
      "source"   case["files"], a program that runs: python main.py
      "diff"     case["diff"], with case["title"] and case["text"]; case["files"] has all files of
                 the repository after the change
    Returns confidence: 0 (healthy) to 1 (faulty); cause: the id of a trap such as "02.1" (the
    command "causes" lists them), or up to forty words; place, in the last two forms: one line of
    the files, such as "loop.py:40".
    """
    healthy_words = ("refactor", "rename", "no functional change")
    said = json.dumps(case).lower()
    confidence = 0.4 if any(word in said for word in healthy_words) else 0.6
    return {"confidence": confidence, "cause": "", "place": ""}


if __name__ == "__main__":
    send(decide(json.loads(sys.stdin.readline())))
