"""The sheet as a notebook: how it goes, two worked cases, and five cases with their answers."""

from __future__ import annotations

from typing import Any

from dlsys_checks.exam import numbers, sheet


def notebook(number: int, ticket: str = "", address: str = "") -> dict[str, Any]:
    """The sheet; with an address it belongs to a class's desk, whose grader checks it."""
    looks = "\n".join(f"| `{name}` | {look.asks} | {look.price} |"
                      for name, look in numbers.LOOKS.items())
    top = TOP.format(title=sheet.stage(number).title, looks=looks, read=numbers.READ,
                     swap=numbers.SWAP, most=numbers.MOST_SWAPPED, budget=numbers.BUDGET,
                     twice=2 * numbers.BUDGET, kept=IN_CLASS if address else ALONE)
    mine = f', "{ticket}", "{address}"' if address else ""
    cells = [("markdown", top), ("code", SETUP.format(number=number, mine=mine)), *WORKED]
    for place in range(1, sheet.CASES + 1):
        checks = [] if address else [
            ("code", f'check("{one.id}", case_{place})  # {one.title.partition(": ")[2]}')
            for one in sheet.traps(number) if one.function == f"case_{place}"]
        cells += [("markdown", f"## Case {place}"), ("code", f"exam.case({place}).complaint()"),
                  ("code", f'# exam.case({place}).look("loss_curve")'),
                  ("code", f'# exam.case({place}).name("...")'),
                  ("code", ANSWER.format(place=place)), *checks]
    cells += AFTER_CLASS if address else AFTER
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

Each of the five cases begins with a complaint: what a user, a dashboard or a log says. It is true,
and it is not everything. All cases come from one plain script that classifies digits, and that also
serves a small language model, learns from preferences and splits a model over several ranks. Most
cases have one planted fault; some are healthy, and the complaint has a harmless reason. Every
script also has a few harmless oddities.

For each case you say in one sentence what is wrong. Then you give a number as evidence and fix the
script. You do not see the script, and no list of faults. You look at what you choose, and each look
has a price.

The plain script has nine parts:

- `data`: 1,000 images of 8 x 8 bytes, which `split` divides into three sets; `brighten` augments
  them, and `scaled` turns them into inputs;
- `model`: `Reader`, a linear layer and attention over the rows of an image, batch norm, two layers
  with ReLU, dropout, a head;
- `optimizer`: `make_optimizer`, AdamW with weight decay for the matrices only, and one cycle of the
  learning rate;
- `train`: `train` sets a new head, trains 6 epochs of 10 batches in two halves each, clips the
  gradients, and keeps a copy of the state with the best accuracy;
- `evaluate`: `evaluate`, the accuracy on the test images; and `smaller`, a copy rounded to 8 bits;
- `ranks`: `side_by_side` trains two copies of a model as DDP does, with both ranks in one process
  and gradients from `average`;
- `serve`: `Writer`, a language model of digits with random, untrained weights. `Memory` keeps the
  keys and values of its requests in blocks, and `speculate` checks the drafts of a cheaper model;
- `prefer`: a policy, which is a table of answers to prompts, whose log-probabilities `scored`
  returns. It learns from pairs with `learn_pairs` (DPO), and from rewards with `against_others`
  (GRPO) and `climb` (PPO); `price` keeps it close to its start;
- `cut`: everything that is too large for one GPU, with all ranks in one process: a layer in halves
  (`backward_in_halves`), a sequence in parts (`attend_in_parts`), `Experts`; and `held`, the
  planned bytes of a GPU.

| what you do | what you see | price |
|---|---|---|
| `exam.case(1).complaint()` | how the case begins | free |
| `exam.case(1).swap("train", "split")` | is the complaint gone with the plain versions? | {swap} |
| `exam.case(1).look("clip")` | the numbers of one look | see below |
| `exam.case(1).read("train")` | the source of a part | {read} |
| `exam.case(1).name("...")` | whether your words name the fault | free, twice |

<details><summary>All looks</summary>

| look | what it shows | price |
|---|---|---|
{looks}

</details>

`swap` takes up to {most} functions or classes. You pay for each of these once, however often you
ask. A look prints each number with its range for
the healthy script; `!` marks the numbers outside their range. A look that has nothing to do with
the fault shows only healthy numbers.

**Points.** Each case is worth 10: 1 for the right name and 1 if it is your first, 1 for the
evidence, 2 for the fix, 2 if you paid at most {twice}, and 3 more if you paid at most {budget}.
So if you buy everything, you earn at most half. Until a case is named, nothing else in it counts.
Once it is named correctly, reading parts for the fix costs nothing. Points for the price have to
come from a search. The 3 need a number: the evidence, or another number outside its range that you
paid for and that the loss curve does not show. For the 2, a fix in the right part is also enough.

**Name.** Write one sentence in English: what the code does wrong, and where. If nothing is wrong,
write "healthy", or that nothing is wrong. The words are compared as the symptom finder compares
them. You are told how they were understood. Two names count; words that name nothing, or several
faults, use up no try.

**Evidence** is one number that you paid for and that shows *which* fault it is. For a healthy case
it is a number that could have shown a fault behind this complaint, and does not.

**A fix** (`mend`) consists of pairs of texts: what the script says, and what it should say. It is
small and changes only parts that you have read: at most 6 lines removed and added, and 160
characters added. It may import nothing, and set nothing in torch itself. It is right if the
fixed script, run with other seeds, has every number of every look in its healthy range. A healthy
case has no fix: leave the list empty.

{kept}"""

ALONE = """The key from which your cases are drawn is in `my-work/.exam-key`, and what you paid and
named in `my-work/.exam.jsonl`. Keep both, or the sheet cannot be continued."""
IN_CLASS = """The cases are at your instructor's desk, which also notes what you pay and which names
you try. So the sheet works only while the exam is running. Hand in this notebook; it is graded with
that record."""

SETUP = """from dlsys.exam import check, sit

exam = sit({number}{mine})
exam.complaints()"""

ANSWER = '''def case_{place}():
    return {{
        "evidence": (),
        "mend": [],
    }}'''

WORKED = (
    ("markdown", """## Worked case 1: how to search

This case is free. Begin with the complaint, and ask which looks could tell its possible causes
apart."""),
    ("code", "exam.case(0).complaint()"),
    ("markdown", """NaN from the first epoch on can have several causes: a learning rate that is
too high, a logarithm of zero, a division by zero. One question separates them: is the NaN already
in the input of the model? `inputs` answers it. A look at the gradients would cost as much and only
show that they are NaN as well."""),
    ("code", 'exam.case(0).look("inputs")'),
    ("markdown", """Two thousandths of the inputs are NaN: one image in 500. Their mean is NaN as
well, but many faults could change a mean, so the evidence is the fraction. The learning rate
cannot cause this; the data must. The part `data` makes the inputs, so read only that
part."""),
    ("code", 'exam.case(0).read("data")'),
    ("markdown", """`scaled` divides each image by its own standard deviation, and for a blank page
that deviation is zero. Say so:"""),
    ("code", 'exam.case(0).name("a blank image has a standard deviation of zero, and scaled "\n'
     '                   "divides by it")'),
    ("markdown", """The answer gives the number and the fix. The first text of a pair has to occur
in the script exactly once; if yours does not, copy more of the lines around it. Before you hand in
a fix, ask what it does to the other images. Dividing by the standard deviation plus a small number
would remove the NaN, but every image would still have a scale of its own."""),
    ("code", '''def case_0():
    return {
        "evidence": ("inputs", "not a number", 0.002),
        "mend": [("    x = images.float()\\n", ""),
                 ("return (x - x.mean((1, 2), keepdim=True)) / x.std((1, 2), keepdim=True)",
                  "return (images.float() - 80) / 90")],
    }'''),
    ("markdown", "The price would have been 5 of 10. Reading all nine parts would have cost 27, "
     "with no number as evidence."),
    ("markdown", """## Worked case 2: divide it

This one is also free. Nothing broke: the accuracy is high."""),
    ("code", "exam.case(-1).complaint()"),
    ("markdown", """Either the test is wrong, or the customer's images are different. Ask first
where the fault can be: replace half of the suspects with parts of the plain script, and see whether
the complaint goes away."""),
    ("code", 'exam.case(-1).swap("evaluate", "smaller")'),
    ("markdown", "So the test itself is not to blame. That leaves the images that it gets:"),
    ("code", 'exam.case(-1).look("test_set")'),
    ("markdown", """`train` has seen all of the test images. So the accuracy is measured on images
that the model knows by heart, and the accuracy itself does not show it. `split`, in the part
`data`, decides which image goes where."""),
    ("code", 'exam.case(-1).read("data")'),
    ("code", 'exam.case(-1).name("the test images overlap with the training images")'),
    ("markdown", "The third range begins before the second one ends. Look at the fix: the test "
     "gets images of its own, and as many as before."),
    ("code", '''def case_silent():
    return {
        "evidence": ("test_set", "test pictures that train has seen", 1.0),
        "mend": [("(400, 700)]", "(700, 1000)]")],
    }'''),
    ("markdown", "The price would have been 7 of 10."),
)
AFTER = (
    ("markdown", """## Afterwards

The debrief ends the exam: after it, no further name, evidence or fix counts. For each case it
shows what was planted, the number that reveals it, and which trap to read. Faults that you did not
name come back in `dlsys review`. To see it, remove the `#`."""),
    ("code", "# exam.debrief()"),
)
AFTER_CLASS = (
    ("markdown", """## Afterwards

Hand in this notebook. When your instructor has ended the exam, the debrief shows for each case what
was planted, the number that reveals it, and which trap to read: remove the `#`. Faults that you did
not name then come back in `dlsys review`."""),
    ("code", "# exam.debrief()"),
)
