"""The command: `dlsys same "train.py --bs 8" "train.py --bs 4 --accum 2"`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from dlsys_same.pairs import Pair, SameError, read

DIFFER, BAD_INPUT = 3, 2
EPILOG = ("Exit status: 0 all agree, 3 some differ, 2 bad input. A file of pairs is TOML: "
          "[[pair]] with first and second, and where needed name, steps, after, whole, limit; its "
          "commands run in the file's folder.")


def add_parser(commands) -> None:
    parser = commands.add_parser(
        "same", help="run two programs that must agree, name the first tensor that differs",
        epilog=EPILOG, description="Runs both for a few optimizer steps and compares data, "
        "outputs, loss, gradients and updates. A third run measures the effect of rounding.")
    parser.add_argument("first", help="a command such as 'train.py --bs 8', or a file of pairs")
    parser.add_argument("second", nargs="?", help="a command that must compute the same")
    parser.add_argument("--steps", type=int, default=3, metavar="N",
                        help="optimizer steps to compare (default 3)")
    parser.add_argument("--after", type=int, default=0, metavar="N",
                        help="skip the first command's first N steps: the second resumes there")
    parser.add_argument("--whole", action="store_true",
                        help="let both run to the end, and also compare their evaluations")
    parser.add_argument("--limit", type=float, default=600.0, metavar="SECONDS",
                        help="time limit for one run (default 600)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to this file")
    parser.set_defaults(run=run_same)


def run_same(args: argparse.Namespace) -> int:
    try:
        pairs = pairs_of(args)
        results = [(pair, shown(pair)) for pair in pairs]
    except SameError as error:
        print(f"dlsys same: {error}", file=sys.stderr)
        return BAD_INPUT
    if args.json is not None:
        args.json.write_text(json.dumps([as_data(*found) for found in results], indent=1) + "\n",
                             "utf-8")
    return 0 if all(result.agree for _, result in results) else DIFFER


def pairs_of(args: argparse.Namespace) -> list[Pair]:
    if args.json is not None and not args.json.absolute().parent.is_dir():
        raise SameError(f"--json {args.json}: there is no folder {args.json.absolute().parent}. "
                        "Make it first.")
    if args.second is None:
        return read(Path(args.first))
    return [Pair(args.first, args.second, "", args.steps, args.after, args.whole, args.limit)]


def shown(pair: Pair):
    """Run a pair and print what was found."""
    from dlsys_same.report import lines  # these import torch
    from dlsys_same.runs import same_pair

    if pair.name:
        print(f"{pair.name}:")
    print(f"first:  {pair.first}\nsecond: {pair.second}", flush=True)  # the rest takes minutes
    result = same_pair(pair, say=progress)
    print("\n".join(lines(result)), flush=True)
    return result


def progress(text: str) -> None:
    """Show how far the comparison is; only on a terminal."""
    if sys.stderr.isatty():
        print(f"  {text} ...", file=sys.stderr, flush=True)


def as_data(pair: Pair, result) -> dict:
    return {"name": pair.name, "first": pair.first, "second": pair.second, "agree": result.agree,
            "steps": result.steps, "problem": result.problem, "compared": result.compared,
            "difference": result.first.as_data() if result.first else None}
