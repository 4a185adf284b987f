"""What a build, a sweep, a proof or a test says of a trap, as rows: place to edit, what to do."""

from __future__ import annotations

import ast
import contextlib
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dlsys_checks import registry
from dlsys_helpers.paths import ROOT
from tools import build, finder_words, lessons, proof, rows, solutions
from tools.rows import Row


class Files(NamedTuple):
    """The four files that hold a trap."""

    lesson: Path
    check: Path
    right: Path
    questions: Path

    def names(self) -> list[str]:
        return [str(path.relative_to(ROOT)) for path in self]


def files_of(id: str) -> Files:
    """The files of a trap. Raises SystemExit if its lesson has no such trap, or no check."""
    stage, number = id.split(".")
    [lesson] = build.paths_of([stage])
    folder = f"s{stage}"
    checks = sorted((ROOT / "src/dlsys_checks" / folder).glob(f"e{number}_*.py"))
    if f'trap="{id}"' not in lesson.read_text("utf-8") or not checks:
        raise SystemExit(f"try: got {id}, expected a trap of {lesson.name} with a check. "
                         f"Run: make new TRAP={id} NAME=<the exercise's function>")
    return Files(lesson, checks[0], solutions.RIGHT_ANSWERS / folder / checks[0].name,
                 ROOT / f"src/dlsys_checks/questions/q{stage}.py")


# ---- the lesson

def place_of_cell(source: lessons.Source, text: str) -> str:
    """The place in the lesson of the cell and line that a message names."""
    found = re.search(r"cell (\S+?)(?:, line (\d+))?[,:]", text)
    first = source.lines.get(found[1].replace("-check-", "-exercise-")) if found else None
    return f"{source.name}:{first + int(found[2] or 0)}" if first else source.name


def claim_rows(source: lessons.Source, lines: list[str]) -> list[Row]:
    """A row for each claim that does not hold; a cell that failed is named by its error."""
    found = []
    for line in lines:
        run, stopped, error = line.partition(": a cell failed.")
        if stopped:
            last = error.strip().splitlines()[-1:] or ["the run ended without a word"]
            found.append(Row(source.name, f"{run}: {last[0]}"))
        else:
            found.append(Row(rows.line_of(source.path, line.partition(": ")[0]), f"{line}. A claim "
                             "holds for every seed: claim less, or measure more."))
    return found


# ---- the symptom finder

PHRASES = 10  # by which it knows a trap


def finder_rows(id: str) -> list[Row]:
    """A row where the finder has too few phrases to know the trap's fault by."""
    causes = yaml.safe_load(finder_words.SAID.read_text("utf-8"))["causes"]
    found = len(causes.get(id, "").splitlines())
    if found >= PHRASES:
        return []
    before = f"{id[:3]}{int(id[3:]) - 1}"
    return [Row(rows.line_of(finder_words.SAID, f'  "{id}": |', f'  "{before}": |', "causes:"),
                f"The symptom finder has {found} phrases for trap {id}, expected {PHRASES}. "
                f'Write below causes: a block "{id}": | with a line for each way in which people '
                "would describe what they see.")]


# ---- what a proof says

# What a proof says, by a part of it, and what to do about it.
REMEDIES = {
    "mutant lives": "Your check lets this change of the worked answer pass. Add a case that fails "
                    'on it; where it is right on every input, ex.equivalent("...", "why").',
    "a reason for a mutant that dies": "Drop its ex.equivalent: a case fails on it.",
    "sandbox lacks": "Import or define it inside the act, whose source runs there alone.",
    "a forged outcome": "The law stumbles over it: compare type and shape first, with an expect_ "
                        "function.",
    "is not wrong": "No case tells this answer from a right one: add the case that does.",
    "has not its name": "Two wrong answers fail alike on most cases: add a case that parts them, "
                        "or drop one.",
    "has not its trap": "Give it the trap that its message sends to.",
    "does not say": "Name with says= the phrase that it is told.",
    "fails by accident": "The law stumbled: compare type and shape first, with an expect_ "
                         "function.",
    "not by what it breaks": "Name the promise that decides this case in breaks=, add the case to "
                             "the cases= of its promise, or narrow the answer.",
    "of which no promise has the key": "Name the keys of promises.",
    "is accepted": "The law does not judge this part of what came back, or with a tolerance that "
                   "hides 2 %.",
}
REFUSED = "A right answer is refused: the law is too narrow, often a tolerance."
OWN = "The worked answer breaks your own law: find out which is wrong before you loosen one."


def proof_rows(id: str, files: Files, lines: list[str]) -> list[Row]:
    """The lines of a proof as rows: of each answer the first one, from which others follow."""
    seen: dict[str, Row] = {}
    for line in lines:
        name = answer_in(id, line)
        seen.setdefault(name or line, proof_row(id, files, line, name))
    return list(seen.values())


def answers_of(id: str) -> dict[str, Any]:
    """All that a file of this exercise names and a proof speaks of, by name."""
    exercise = solutions.with_kept_answers(id)
    answers = {one.name: one.fn for one in (*exercise.wrong_answers, *exercise.probes)}
    return answers | {**exercise.right_answers} | dict.fromkeys([proof.WORKED])


def answer_in(id: str, line: str) -> str:
    """The answer that a line of a proof is about; "" for none."""
    found = (name for name in answers_of(id) if line.startswith(f"{id}, {name}: "))
    return max(found, key=len, default="")


def remedy_for(line: str) -> str:
    return next((remedy for part, remedy in REMEDIES.items() if part in line), "")


def proof_row(id: str, files: Files, line: str, name: str) -> Row:
    """A line of a proof as a row: the place of its answer, and what to do."""
    exercise, says = registry.find(id), plain(line.removeprefix(id).lstrip(",: "))
    remedy = remedy_for(line)
    if name == proof.WORKED:
        return Row(rows.line_of(files.lesson, f"def {exercise.function}("), sentences(says, OWN))
    if name in exercise.right_answers:
        return Row(rows.line_of(files.right, f'"{name}'), sentences(says, remedy or REFUSED))
    if "a reason for a mutant" in line:
        return Row(rows.line_of(files.right, line.rpartition("dies: ")[2]),
                   sentences(says, remedy))
    anchor = ("@ex.cases" if "mutant lives" in line else
              "@ex.act" if "sandbox lacks" in line else "@ex.law")
    path = files.right if name and name in {one.name for one in exercise.probes} else files.check
    words = (f'"{name}',) if name else (anchor,)
    return Row(rows.line_of(path, *words), sentences(says, remedy))


def plain(line: str) -> str:
    """A line of a proof with its verdict as a sentence."""
    text, verdict, facts = line.partition(": Verdict(")
    told = re.search(r"message=(['\"])(.*?)\1, misconception=(['\"])(.*?)\3, ", facts)
    if not verdict or not told:
        return line
    taken = f"; it was taken for: {told[4]}" if "not its name" in text and told[4] else ""
    return f"{text}{taken}" if not told[2] else f"{text}{taken}. It was told: {told[2]}"


def sentences(says: str, remedy: str) -> str:
    return f"{says.rstrip('. ')}. {remedy}"


# ---- what a test says

class Advice(NamedTuple):
    """What a failed test means: the file, a word of the line to edit, and what to do."""

    file: str  # a field of Files
    word: str
    remedy: str


ADVICE = {
    "test_stub_is_todo": Advice("lesson", "# BEGIN SOLUTION", "Keep the answer inside the solution "
                              "region: the worksheet's stub must be unfinished."),
    "test_promises_cover_the_docstring": Advice(
        "check", "ex.promise", "Promises and docstring hold the same words, each word once: copy "
        "the sentence from the exercise, or drop it there."),
    "test_each_promise_has_its_cases_and_an_answer_that_breaks_it_alone": Advice(
        "check", "ex.wrong", "Write an answer that is wrong only there, such as one that forgets "
        "a single row; where no learner would write it, it is an ex.probe in the other file."),
    "test_at_least_four_named_wrong_answers": Advice(
        "check", "ex.wrong", "Name four wrong answers or more, each once."),
    "test_constant_answers_fail": Advice(
        "check", "@ex.cases", "An answer that ignores its input passes: draw other cases."),
    "test_same_seed_same_cases_other_seed_other_cases": Advice(
        "check", "@ex.cases", "Draw the cases from the generator g, and from nothing else."),
    "test_cases_are_plain_data": Advice(
        "check", "@ex.cases", "Inputs are numbers, texts, tensors, and lists, tuples and dicts of "
        "them."),
    "test_every_input_of_an_act_is_known": Advice(
        "check", "seen=", "seen= names the inputs of the cases, all of them and no others."),
    "test_no_input_holds_what_comes_out": Advice(
        "check", "@ex.cases", "An input of a case is a part of the answer: give less, or name in "
        "kept= what is only handed through."),
    "test_act_stands_alone": Advice(
        "check", "@ex.act", "An act travels to a sandbox: it uses torch, nn, F, math, copy and "
        "library_calls, and no other function of the file."),
    "test_no_table_passes": Advice(
        "check", "@ex.cases", "An answer that repeats what it saw on one seed passes: vary "
        "numbers and shapes from seed to seed."),
    "test_a_trap_has_four_questions_or_more": Advice(
        "questions", "", "Write four questions about the trap, or more."),
    "test_answers_are_taken_and_beliefs_refused_on_many_seeds": Advice(
        "questions", "", "A belief is never close enough to count as right, a choice has three to "
        "five options, and a reason ends with a full stop."),
    "test_a_seed_fixes_a_question_and_another_one_draws_anew": Advice(
        "questions", "", "Draw more than two different texts, from rng alone."),
}


def test_row(id: str, files: Files, name: str, message: str) -> Row:
    """A failed test as a row: the promise or case that its message begins with, else its file."""
    says = own_words(message)
    advice = ADVICE.get(name, Advice("check", "", f"See {name} in tests/."))
    path = getattr(files, advice.file)
    key = says.partition(":")[0]
    words = (f'("{key}"', f"{key} ") if name.startswith("test_promises") else ()
    if advice.file == "questions":
        return Row(place_of_question(path, id, says), sentences(says, advice.remedy))
    return Row(rows.line_of(path, *words, advice.word), sentences(says, advice.remedy))


def place_of_question(path: Path, id: str, says: str) -> str:
    """Where the question begins that a message names, "05.6, question 2"; else the first one."""
    found = re.search(rf"{re.escape(id)}, question (\d+)", says)
    text = path.read_text("utf-8")
    begins = [text[:one.start()].count("\n") + 1
              for one in re.finditer(rf'^(?:ask|@question_for)\("{re.escape(id)}"', text, re.M)]
    name = rows.line_of(path)
    return f"{name}:{begins[int(found[1]) - 1 if found else 0]}" if begins else name


def own_words(message: str) -> str:
    """What an assertion said: its own message, or the list that should have been empty."""
    text = message.removeprefix("AssertionError: ")
    own = text.partition("\nassert ")[0].strip()
    if found := re.match(r"assert (\[.*\]) == \[\]$", own.partition("\n")[0]):
        with contextlib.suppress(ValueError, SyntaxError):
            return "; ".join(map(str, ast.literal_eval(found[1])))
    return own.partition("\n")[0] if own.startswith("assert ") else own
