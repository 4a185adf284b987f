"""The exam: `dlsys exam a` makes a sheet, and its notebook looks at the cases with `sit`.

A notebook that runs in the grader's sandbox finds no probes there; then they only say so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import dlsys_helpers
from dlsys.check_stub import CheckStub
from dlsys_helpers import paths, progress, timeouts
from dlsys_helpers.errors import UserError

PROBES = ("loss_curve", "look_at_batch", "one_batch", "gradient_report", "trace", "evaluation",
          "two_ranks", "serving", "preferences", "parallel")
BREAK = ",\n" + " " * len('"paid": [')  # between the lines of a long receipt


class ExamError(UserError):
    """An exam sheet cannot be made or used as it was asked for; the message says what to do."""


# ---- in the notebook

@contextlib.contextmanager
def _probes_here(what: str) -> Iterator[None]:
    """Context: print a UserError as one line; the same where the probes are not installed."""
    try:
        yield
    except UserError as error:
        print(error)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("dlsys_checks"):
            raise
        print(f"{what}: no probes here.")


class Case:
    """One faulty script: each probe prints numbers and costs its price once."""

    def __init__(self, number: int, place: int) -> None:
        """Raises ExamError for a number that is not whole, and for a place beyond 0 to 5.

        Place -1 is the second worked case.
        """
        if type(number) is not int:
            raise ExamError(f"sit: got {str(number)[:20]!r}, expected the whole number of a sheet, "
                            "as the first code cell has it.")
        if type(place) is not int or place not in range(-1, 6):
            raise ExamError(f"case: got {place!r:.20}, expected a whole number, 0 to 5.")
        self.number, self.place = number, place

    def loss_curve(self) -> None:
        """The losses of all steps, and the accuracy at the end."""
        self._look("loss_curve")

    def look_at_batch(self) -> None:
        """What enters the model while it learns."""
        self._look("look_at_batch")

    def one_batch(self) -> None:
        """A fresh model that learns one batch by heart."""
        self._look("one_batch")

    def gradient_report(self) -> None:
        """Gradients and updates at the steps of the optimizer."""
        self._look("gradient_report")

    def trace(self) -> None:
        """What the optimizer holds, its rates, and what is kept of the model."""
        self._look("trace")

    def evaluation(self) -> None:
        """What happens while the model is tested."""
        self._look("evaluation")

    def two_ranks(self) -> None:
        """What two ranks do that train copies of one model side by side."""
        self._look("two_ranks")

    def serving(self) -> None:
        """What happens while a language model serves requests."""
        self._look("serving")

    def preferences(self) -> None:
        """What pairs and rewards make of a policy."""
        self._look("preferences")

    def parallel(self) -> None:
        """What becomes of a model that is cut over ranks, and of a plan for eight GPUs."""
        self._look("parallel")

    def read(self, part: str) -> None:
        """The source of a part, such as data; the sheet lists them."""
        def shown() -> str:
            from dlsys_checks.exam import faults, sheet
            if part not in faults.PARTS:
                raise ExamError(f"read: got {str(part)[:40]!r}, expected one of "
                                f"{', '.join(faults.PARTS)}.")
            planted = sheet.case(self.number, self.place)
            if self.place < 1 and part != planted[0].part:
                raise ExamError(f"read: got {part!r}, expected {planted[0].part!r}: of a free "
                                "case the other parts are those of the plain script.")
            return faults.part_of(sheet.source(planted), part)
        self._pay(f"read {part}", shown)

    def receipt(self) -> None:
        """The line `paid` of your answer, and what it adds up to."""
        with _probes_here("receipt"):
            print(self._receipt())

    def _look(self, probe: str) -> None:
        def shown() -> str:
            from dlsys_checks.exam import laws, numbers
            found = laws.look(self.number, self.place, probe)
            return probe_table(found, numbers.HEALTHY[probe])
        self._pay(probe, shown)

    def _pay(self, what: str, shown: Callable[[], str]) -> None:
        with _probes_here(what):
            from dlsys_checks.exam import ledger, sheet
            sheet.known(self.number)
            text = shown()
            ledger.pay(self.number, self.place, what)  # before it is seen
            print(text)
            print(self._receipt())

    def _receipt(self) -> str:
        from dlsys_checks.exam import ledger, numbers, sheet
        sheet.known(self.number)
        budget = numbers.BUDGETS[1 + (self.place == sheet.CASES)]
        paid = self.paid()
        lines = [", ".join(map(json.dumps, paid[k:k + 4])) for k in range(0, len(paid), 4)]
        note = "  This case is free." if self.place < 1 else ""
        if ledger.STORE.path() is None:
            note += "  Known only in this session, because DLSYS_PROGRESS is off."
        return (f"Paid {numbers.price(paid)} of {budget}.{note}\n"
                f'"paid": [{BREAK.join(lines)}],')

    def paid(self) -> list[str]:
        """What was looked at, and a line for each wrong name or evidence that a check refused."""
        from dlsys_checks.exam import ledger
        return ledger.paid(self.number, self.place)


class Exam:
    """A sheet: its cases, and the list of names."""

    def __init__(self, number: int) -> None:
        self.number = number

    def case(self, place: int) -> Case:
        """Case 1 to 5, or a worked one, 0 or -1. Raises ExamError for another."""
        return Case(self.number, place)

    def debrief(self) -> None:
        """End the exam: of each case the fault, the number that shows it, the trap to read.

        A notebook that is run for its answers alone does not end it.
        """
        if isinstance(dlsys_helpers.check, CheckStub):
            return
        with _probes_here("debrief"):
            from dlsys_checks.exam import debrief
            print(debrief.text(self.number))


def sit(number: int) -> Exam:
    """The exam sheet with this number, as the notebook's first cell opens it."""
    return Exam(number)


def check(id: str, fn: Callable[[], dict]) -> None:
    """Check a row of a sheet, as `dlsys_helpers.check` does an exercise.

    Raises CheckFailed unless the answer passes or somebody sees the card, BadCall for an id that
    is none and for the function of another case.
    """
    if isinstance(dlsys_helpers.check, CheckStub):  # this notebook is run for its answers
        dlsys_helpers.check(id, fn)
        return
    from dlsys_checks import checking
    from dlsys_checks.exam import laws, sheet
    _refuse_bad_call(id, fn)
    seeds = checking.drawn_seeds()
    verdict = laws.run_check(id, fn, seeds, timeouts.SECONDS)
    progress.record(id, verdict.status, verdict.misconception)
    try:
        checking.tell(verdict, sheet.trap(id))
    finally:
        if verdict.misconception:  # which costs
            Case(int(id[:2]), sheet.place(id)[0]).receipt()


def _refuse_bad_call(id: Any, fn: Any) -> None:
    """Raise BadCall for an id that is none, and for another case: its names would cost."""
    from dlsys_checks.checking import BadCall
    from dlsys_checks.exam import sheet
    if type(id) is not str or not sheet.is_row(id):
        raise BadCall(f"check: got {id!r:.40}, expected the id of a row in quotes, then your "
                      'function, such as check("27.1", case_1).')
    asked, given = sheet.trap(id).function, str(getattr(fn, "__name__", ""))
    if given != asked and re.fullmatch(r"case_\d", given):
        raise BadCall(f"check: got {given} for row {id}, expected {asked}. "
                      f'Write: check("{id}", {asked})')


def probe_table(found: dict[str, Any], healthy: dict[str, tuple[float, float]]) -> str:
    """The numbers of a probe, a mark at those outside the healthy range, and the loss curve."""
    lines = []
    if curve := found.get("curve"):
        lines += [f"loss of step 1 to {len(curve)}, in groups of ten:",
                  "  " + "  ".join(f"{sum(curve[k:k + 10]) / len(curve[k:k + 10]):.3g}"
                                   for k in range(0, len(curve), 10)), ""]
    width = max(map(len, healthy))
    for name, (low, high) in healthy.items():
        value = found[name]
        mark = " " if low <= value <= high else "!"
        span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        lines.append(f"{mark} {name:<{width}}  {value:>9.4g}   healthy: {span}")
    return "\n".join(lines) + "\n"


# ---- dlsys exam

def add_parser(commands) -> None:
    """Add `exam` to the commands of `dlsys`."""
    from dlsys_checks.exam import sheet
    parser = commands.add_parser("exam", help="find planted faults; forms a and b are matched")
    parser.add_argument("form", choices=("a", "b"),
                        help="a before the course, b after it, or the reverse")
    parser.add_argument("--draw", type=_draw_number, metavar="N",
                        help=f"0 to {sheet.DRAWS - 1}, to give everybody the same draw (default: "
                             "the draw of your other form, or a random one)")
    parser.add_argument("--debrief", action="store_true",
                        help="end the exam and show the faults, the numbers that reveal them, and "
                             "what to read")
    parser.set_defaults(run=run)


def _draw_number(text: str) -> int:
    """A draw as it is typed. Raises argparse.ArgumentTypeError."""
    from dlsys_checks.exam import sheet
    if text.isascii() and text.isdecimal() and int(text) < sheet.DRAWS:
        return int(text)
    raise argparse.ArgumentTypeError(f"got {text[:20]!r}, expected a whole number, 0 to "
                                     f"{sheet.DRAWS - 1}")


def run(args: argparse.Namespace) -> int:
    """Write the sheet to my-work/ unless it is there."""
    from dlsys import work_folder
    from dlsys_checks.exam import sheet

    if args.debrief:
        return _debrief(args.form.upper(), args.draw)
    draw = _draw(args.form.upper()) if args.draw is None else args.draw
    number = sheet.number_of(args.form.upper(), draw)
    other = sheet.number_of("AB".replace(args.form.upper(), ""), draw)
    path = paths.MY_WORK / f"{sheet.stage(number).stem}.ipynb"
    made = work_folder.keep(path, (json.dumps(notebook(number), indent=1) + "\n").encode(),
                            "the exam")
    name = f"{paths.MY_WORK.name}/{path.name}"
    print(f"{'Your exam is' if made else 'It exists and stays as it is:'} {name}. Open it in "
          f"JupyterLab ({work_folder.open_lab()}). Check all of it with: dlsys check "
          f"exam-{args.form}\n"
          f"The matched form: dlsys {sheet.how_to_begin(other)}")
    return 0


def _debrief(form: str, draw: int | None) -> int:
    """End the exam on the learner's last sheet of a form, or on one draw's. Raises ExamError."""
    from dlsys_checks.exam import debrief, sheet
    draw = _last(form) if draw is None else draw
    if draw is None:
        raise ExamError(f"exam: no sheet of form {form} in {paths.MY_WORK.name}. Make one with: "
                        f"dlsys exam {form.lower()}")
    print(debrief.text(sheet.number_of(form, draw)))
    return 0


def _draw(form: str) -> int:
    """The draw of the learner's last sheet of the other form; by chance where there is none."""
    from dlsys_checks.exam import sheet
    last = _last("AB".replace(form, ""))
    return secrets.randbelow(sheet.DRAWS) if last is None else last


def _last(form: str) -> int | None:
    """The draw of the learner's last sheet of a form; None where there is none."""
    from dlsys_checks.exam import sheet
    made = {paths.MY_WORK / f"{sheet.stage(sheet.number_of(form, draw)).stem}.ipynb": draw
            for draw in range(sheet.DRAWS)}
    there = [path for path in made if path.exists()]
    return made[max(there, key=lambda path: path.stat().st_mtime)] if there else None


# ---- the notebook

def notebook(number: int) -> dict[str, Any]:
    """The sheet as a notebook: how it goes, worked cases, five cases with answer and check."""
    from dlsys_checks.exam import faults, mending, numbers, sheet
    names = "\n".join(f"| `{one.id}` | {one.name} |" for one in sorted(
        faults.FAULTS.values(), key=lambda one: [int(n) for n in one.id.split(".")]))
    prices = ", ".join(f"`{probe}` {numbers.PRICES[probe]}" for probe in PROBES)
    top = TOP.format(title=sheet.stage(number).title, names=names, prices=prices,
                     read=numbers.PRICES["read data"], wrong=numbers.PRICES["wrong name"],
                     lines=mending.LINES, letters=mending.LETTERS,
                     one=numbers.BUDGETS[1], two=numbers.BUDGETS[2])
    cells = [("markdown", top), ("code", SETUP.format(number=number))]
    cells += WORKED
    for place in range(1, sheet.CASES + 1):
        several = " has two faults" if place == sheet.CASES else " has one fault"
        checks = [("code", f'check("{one.id}", case_{place})  # {one.title.partition(": ")[2]}')
                  for one in sheet.traps(number) if one.function == f"case_{place}"]
        cells += [("markdown", f"## Case {place}\n\nThis script{several}. Add a cell for "
                   f"each probe, such as `exam.case({place}).loss_curve()`."),
                  ("code", f"exam.case({place}).receipt()"),
                  ("code", ANSWER.format(place=place)), *checks]
    cells += AFTER
    return {"cells": [_cell(k, *cell) for k, cell in enumerate(cells)], "nbformat": 4,
            "nbformat_minor": 5, "metadata": {
                "dlsys": {"stage": number, "view": "exercise"},
                "kernelspec": {"display_name": "Python 3", "language": "python",
                               "name": "python3"},
                "language_info": {"name": "python"}}}


def _cell(place: int, kind: str, text: str) -> dict[str, Any]:
    more = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "id": f"exam-{place}", "metadata": {}, "source": text, **more}


TOP = """# {title}

Five training scripts classify digits. All of them come from one plain script. Cases 1 to 4 have
one planted fault each, and case 5 has two. For each case you name the fault, give a number as
evidence, and fix the script. You do not see the script. You inspect it with probes, and each
probe has a price.

The plain script has nine parts:

- `data`: 1,000 images of 8 x 8 bytes, split into three sets; `brighten` augments them, and
  `scaled` turns them into inputs;
- `model`: a linear layer and attention over the rows of an image, batch norm, two layers with
  ReLU, dropout, a head;
- `optimizer`: AdamW with weight decay for the matrices only, and one cycle of the learning rate;
- `train`: sets a new head, trains 6 epochs of 10 batches in two halves each, clips the gradients,
  and keeps a copy of the state with the best accuracy;
- `evaluate`: the accuracy on the test images; and `smaller`, a copy rounded to 8 bits;
- `ranks`: `side_by_side` trains two copies of a model as DDP does, with both ranks in one
  process;
- `serve`: a language model of digits with random, untrained weights. `Memory` keeps the keys and
  values of its requests in blocks, and `speculate` checks the drafts of a cheaper model;
- `prefer`: a policy, which is a table of answers to prompts. It learns from pairs with
  `learn_pairs` (DPO), and from rewards with `against_others` (GRPO) and `climb` (PPO); `price`
  keeps it close to its start;
- `cut`: everything that is too large for one GPU, with all ranks in one process: a layer in
  halves, a sequence in parts, `Experts`; and `held`, the planned bytes of a GPU.

| what you pay for | price |
|---|---|
| a probe, such as `exam.case(1).trace()` | {prices} |
| a part, such as `exam.case(1).read("train")` | {read} |
| wrong names, or wrong evidence, that a check refuses | {wrong} |

You pay for each of these once, however often you ask. A case with one fault has a budget of
{one}, and the last case has {two}. That is too little for all probes and a part to read, so
choose. Each case is worth 2 points for the faults, 2 for the evidence, 3 for the fix (`mend`) and
1 for staying within the budget. Names come first: if the names of a case are wrong, nothing else
in it counts, and each row that you check may refuse them.

A probe prints each number with its range for the healthy script. `!` marks the numbers outside
their range. One fault may move several numbers. Evidence is a number that shows *which* fault it
is; give one number for each fault.

A fix is small and changes only parts that you have read. For each fault it may remove and add
{lines} lines in all, and the added lines may have {letters} characters. It may import nothing,
and set nothing in torch itself. The fix is right if the fixed script, run with other seeds, has
every number of every probe in its healthy range. Removing the faulty line is seldom enough.

What you paid is recorded in `my-work/`, and `receipt()` prints the line for your answer; your own
checks compare the two. The grader sees only the line, so it has to trust you about the price.

<details><summary>All faults, each with the number of the trap that it comes from</summary>

| id | the fault |
|---|---|
{names}

</details>"""

SETUP = """from dlsys.exam import check, sit

exam = sit({number})"""

ANSWER = '''def case_{place}():
    return {{
        "faults": [],
        "evidence": [],
        "mend": [],
        "paid": [],
    }}'''

WORKED = (
    ("markdown", """## Worked case 1: how to look

This case is free. Begin with the cheapest probe. It shows how bad things are, and seldom
why."""),
    ("code", "exam.case(0).loss_curve()"),
    ("markdown", """The loss is NaN from the first epoch on. Several faults could cause that: a
learning rate that is too high, a logarithm of zero, a division by zero. One question
separates them: is the NaN already in the data that enter the model? `look_at_batch` answers
it for 2. A look at the gradients would cost 3 and would only show that they are NaN as
well."""),
    ("code", "exam.case(0).look_at_batch()"),
    ("markdown", """Two thousandths of the inputs are NaN: one image in 500. Their mean is NaN as
well, but many faults could change a mean, so the evidence is the fraction. The learning rate
cannot cause this; the data must. The part `data` makes the inputs, so read only that
part."""),
    ("code", 'exam.case(0).read("data")'),
    ("markdown", """`scaled` divides each image by its own standard deviation, and that of a blank
page is zero. The list of faults has this one: `12.1`. The answer names it, gives the number,
and contains pairs of texts: what the script says, and what it should say. The first text of a
pair has to occur in the script exactly once. If yours does not, the check says so, and you
copy more of the lines around it.

Before you hand in a fix, ask what it does to the other images. Dividing by the standard deviation
plus a small number would remove the NaN, but every image would still have a scale of its
own."""),
    ("code", '''def case_0():
    return {
        "faults": ["12.1"],
        "evidence": [("look_at_batch", "not a number", 0.002)],
        "mend": [("    x = images.float()\\n", ""),
                 ("return (x - x.mean((1, 2), keepdim=True)) / x.std((1, 2), keepdim=True)",
                  "return (images.float() - 80) / 90")],
        "paid": ["loss_curve", "look_at_batch", "read data"],
    }'''),
    ("markdown", "The price would have been 6 of 10. Reading all nine parts would have cost 27, "
     "with no number as evidence."),
    ("markdown", """## Worked case 2: nothing looks wrong

This one is also free. The loss falls, and the accuracy is high."""),
    ("code", "exam.case(-1).loss_curve()"),
    ("markdown", """No number is marked. That rules out every fault that breaks the training. The
remaining ones leave it intact: a schedule or a decay that is slightly wrong, bytes that wrap
around, a kept state, the test itself. Ask which number would look good even if it were wrong.
The accuracy would: it is only as good as the images that it is measured on. `evaluation`
inspects the test for 3."""),
    ("code", "exam.case(-1).evaluation()"),
    ("markdown", """One number is marked: `train` has seen all of the test images. So the accuracy
is measured on images that the model knows by heart, and the accuracy itself does not show it.
`split`, in the part `data`, decides which image goes where."""),
    ("code", 'exam.case(-1).read("data")'),
    ("markdown", """The third range begins before the second one ends. The list of faults has this
one: `06.7`. Look at the fix: the test gets images of its own, and as many as before."""),
    ("code", '''def case_silent():
    return {
        "faults": ["06.7"],
        "evidence": [("evaluation", "test pictures that train has seen", 1.0)],
        "mend": [("(400, 700)]", "(700, 1000)]")],
        "paid": ["loss_curve", "evaluation", "read data"],
    }'''),
    ("markdown", "The price would have been 7 of 10."),
)
AFTER = (
    ("markdown", """## Afterwards

The debrief ends the exam. For each case it shows what was planted, the number that reveals it, and
which trap to read. Faults that you did not name come back in `dlsys review`. In a class, hand in
first, and then remove the `#`."""),
    ("code", "# exam.debrief()"),
)
