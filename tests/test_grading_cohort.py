"""A whole class gets graded, even after kills and lost workers, and by an ordinary user."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from grading_samples import FULL, entry, journal_results, open_grader, settings, worksheet

from dlsys.grading import cohort, judge
from dlsys.grading.books import budget, scoring, submissions
from dlsys.grading.books.journal import Journal, checks_digest, versions
from dlsys.grading.books.run_folder import (
    FROM_A_FINISHED_RUN,
    FROM_THE_INSTRUCTOR,
    GRADES,
    JOURNAL,
    RunError,
)
from dlsys.grading.settings import fresh_key

WRONG = "def dead_units(h):\n    return -1"


def fake_workers(jobs):
    """Workers that need no sandbox and give a notebook's length as its points."""
    for job in jobs:
        yield job, {**cohort.refused("x"), "status": "graded", "points": len(job.data)}


def hand_in(folder: Path, n: int) -> list[submissions.Submission]:
    folder.mkdir(exist_ok=True)
    for k in range(n):
        (folder / f"learner{k:02d}.ipynb").write_bytes(worksheet(e4=WRONG if k % 2 else ""))
    return submissions.find([folder]).submissions


# ---- the journal, without a sandbox

def test_every_result_is_in_the_record_in_the_order_of_the_submissions(tmp_path):
    found = hand_in(tmp_path / "in", 3)
    journal = Journal.begin(tmp_path / "out", settings())

    grades = cohort.grade_all(found, journal, lambda jobs: reversed(list(fake_workers(jobs))))
    journal.close()

    assert [r["name"] for r in grades["results"]] == [one.name for one in found]
    assert json.loads((tmp_path / "out/grades.json").read_text()) == grades
    assert grades["run"]["settings"]["key"] == "00" * 16
    assert os.stat(tmp_path / "out/grades.json").st_mode & 0o077 == 0


def test_a_run_that_was_cut_off_in_a_line_goes_on_after_the_last_whole_one(tmp_path):
    found = hand_in(tmp_path / "in", 4)
    journal = Journal.begin(tmp_path / "out", settings())
    cohort.grade_all(found[:2], journal, fake_workers)
    journal.close()
    path = tmp_path / "out" / JOURNAL
    path.write_bytes(path.read_bytes() + b'{"name": "learner02.ipy')
    graded = []

    def counting(jobs):
        for job, result in fake_workers(jobs):
            graded.append(job.submission.name)
            yield job, result

    journal = Journal.resume(tmp_path / "out")
    grades = cohort.grade_all(found, journal, counting)
    journal.close()

    assert graded == [one.name for one in found[2:]]
    assert len(grades["results"]) == 4
    assert len(journal_results(tmp_path / "out")) == 4


@pytest.mark.parametrize("name", [*FROM_THE_INSTRUCTOR, *FROM_A_FINISHED_RUN])
@pytest.mark.parametrize("journal", [None, "", '{"run": {}}\n'])
def test_a_folder_that_came_with_a_hand_in_gives_no_points(tmp_path, name, journal):
    """A zip unpacked into the class's folder may contain a folder `grades` with points in it."""
    (tmp_path / name).symlink_to("nothing")
    if journal is not None:
        (tmp_path / JOURNAL).write_text(journal)
    with pytest.raises(RunError, match=rf"already holds {name}, expected a folder without"):
        Journal.begin(tmp_path, settings())


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.link(path.parent / "mine", path)])
def test_a_journal_that_is_no_file_of_its_own_is_neither_read_nor_emptied(tmp_path, make):
    (tmp_path / "mine").write_text("one line\n")
    make(tmp_path / JOURNAL)
    with pytest.raises(RunError, match=r"journal.jsonl: is a link or not a regular file"):
        Journal.begin(tmp_path, settings())
    assert (tmp_path / "mine").read_text() == "one line\n"


def test_a_journal_that_others_could_read_is_closed_to_them(tmp_path):
    """The journal contains the key of the run."""
    (tmp_path / JOURNAL).touch(0o644)
    Journal.begin(tmp_path, settings()).close()
    assert (tmp_path / JOURNAL).stat().st_mode & 0o077 == 0


def test_a_journal_that_is_a_link_is_not_emptied(tmp_path):
    (tmp_path / "mine.txt").write_text("one line\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / JOURNAL).symlink_to(tmp_path / "mine.txt")
    with pytest.raises(OSError, match="symbolic links"):
        Journal.begin(tmp_path / "out", settings())
    assert (tmp_path / "mine.txt").read_text() == "one line\n"


def test_where_all_is_graded_no_worker_starts(tmp_path):
    found = hand_in(tmp_path / "in", 2)
    journal = Journal.begin(tmp_path / "out", settings())
    cohort.grade_all(found, journal, fake_workers)

    grades = cohort.grade_all(found, journal, None)
    journal.close()

    assert [r["status"] for r in grades["results"]] == ["graded"] * 2


def test_any_cut_of_the_journal_resumes_without_loss(tmp_path):
    found = hand_in(tmp_path / "in", 2)
    journal = Journal.begin(tmp_path / "out", settings())
    cohort.grade_all(found, journal, fake_workers)
    journal.close()
    path = tmp_path / "out" / JOURNAL
    whole, judged = path.read_bytes(), journal_results(tmp_path / "out")
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole), 97):
        path.write_bytes(whole[:cut])
        path.with_name(GRADES).unlink()  # an interrupted run has none yet
        journal = Journal.resume(tmp_path / "out")
        grades = cohort.grade_all(found, journal, fake_workers)
        journal.close()
        assert len(grades["results"]) == 2
        assert sorted(journal_results(tmp_path / "out"), key=str) == judged


def of_canvas(folder: Path) -> list[submissions.Submission]:
    folder.mkdir()
    for name in ("ada_7734_1", "ada_7736_2", "bobk_7735_3"):
        (folder / f"{name}_01_activations.ipynb").write_bytes(worksheet(f"x = {name!r}"))
    return submissions.find([folder]).submissions


def test_who_is_graded_again_goes_by_the_name_on_the_pages_and_is_one_person(tmp_path):
    found, out = of_canvas(tmp_path / "in"), tmp_path / "out"
    names = {("canvas", "7735"): "Bob K", ("canvas", "7734"): "Ada L", ("canvas", "7736"): "Ada L"}
    with contextlib.closing(Journal.begin(out, settings())) as journal:
        cohort.grade_all(found, journal, fake_workers, rules=scoring.Scoring(names=names))

    with contextlib.closing(Journal.resume(out)) as journal:
        for name in ("Ada L", "ada"):
            with pytest.raises(RunError, match=f"2 people are called '{name}'; give the "
                                                      "number: 7734, 7736"):
                journal.forget([name])
        with pytest.raises(RunError, match="such as Ada L, Bob K"):
            journal.forget(["nobody"])
        journal.forget(["Bob K"])
        assert sorted(r["learner"]["id"] for r in journal.done.values()) == ["7734", "7736"]


def test_a_changed_submission_is_graded_anew_and_a_failed_one_again(tmp_path):
    found = hand_in(tmp_path / "in", 2)
    journal = Journal.begin(tmp_path / "out", settings())
    cohort.grade_all(found, journal, lambda jobs: (
        (job, cohort.failed("lost") if "00" in job.submission.name else cohort.refused("no"))
        for job in jobs))
    journal.close()
    Path(found[1].path).write_bytes(worksheet())

    journal = Journal.resume(tmp_path / "out")
    grades = cohort.grade_all(found, journal, fake_workers)
    journal.close()

    assert [r["status"] for r in grades["results"]] == ["graded", "graded"]


def test_a_learner_who_uses_up_all_time_again_and_again_keeps_nobody_waiting(tmp_path):
    """Each of ada's hand-ins takes 600 s of 600, so she gets only three."""
    for name, n in (("ada_1", 6), ("bob_2", 2)):
        folder = tmp_path / "in" / f"{name}_assignsubmission_file_"  # as Moodle names them
        folder.mkdir(parents=True)
        for k in range(n):
            (folder / f"{k}.ipynb").write_bytes(worksheet(f"x = {k}"))
    found, out, begun = submissions.find([tmp_path / "in"]).submissions, tmp_path / "out", []

    def slow(jobs):
        for job, result in fake_workers(jobs):
            begun.append(job.submission.name[:3])
            yield job, {**result, "seconds": 600.0 if "ada" in job.submission.name else 9.0}

    limits = dataclasses.replace(settings().limits, total=600.0)
    journal = Journal.begin(out, dataclasses.replace(settings(), limits=limits))
    first = cohort.grade_all(found, journal, slow)["results"]
    journal.close()
    with contextlib.closing(Journal.resume(out)) as journal:
        again = cohort.grade_all(found, journal, slow)["results"]

    assert begun == ["ada", "ada", "ada", "bob", "bob"]
    assert [r["status"] for r in first] == ["graded"] * 3 + ["refused"] * 3 + ["graded"] * 2
    assert first[3]["reason"].startswith(
        "was not begun: this learner's other hand-ins took 30 min, of at most 30. To grade it "
        "anyway: dlsys grade FILE --out OTHER_FOLDER --key ")
    assert first[3]["reason"].endswith("out/grades.json")
    assert again == first, "resumed, they are not waited for again"


def test_forty_honest_hand_ins_are_graded_whatever_the_limit(tmp_path):
    short, learner = budget.Budget(20.0, tmp_path), submissions.Learner("ada")
    for _ in range(39):
        short.add({"learner": dataclasses.asdict(learner), "seconds": 30.0})

    assert short.refusal(learner) == ""


@pytest.mark.parametrize("finished", [True, False])
def test_what_comes_after_the_feedback_is_judged_on_other_cases(tmp_path, finished):
    draws = []

    def workers(jobs):
        for job in jobs:
            draws.append(job.draw)
            yield job, next(fake_workers([job]))[1]

    found, out = hand_in(tmp_path / "in", 2), tmp_path / "out"
    with contextlib.closing(Journal.begin(out, settings())) as journal:
        cohort.grade_all(found[:1], journal, workers)
    if not finished:
        (out / GRADES).unlink()
    with contextlib.closing(Journal.resume(out)) as journal:
        grades = cohort.grade_all(found, journal, workers)
    told = ["different cases" in " ".join(r["notes"]) for r in grades["results"]]

    assert draws == [0, int(finished)]
    assert told == [False, finished]


def test_a_folder_holds_one_run_and_one_grader(tmp_path):
    found, out = hand_in(tmp_path / "in", 1), tmp_path / "out"
    journal = Journal.begin(out, settings())
    with pytest.raises(RunError, match="another grader"):
        Journal.resume(out)
    cohort.grade_all(found, journal, fake_workers)
    journal.close()
    with pytest.raises(RunError, match="--resume"):
        Journal.begin(out, settings())
    with pytest.raises(RunError, match="no run"):
        Journal.resume(tmp_path / "other")


@pytest.mark.parametrize("cut", [0, 40, None])
def test_a_run_that_graded_nothing_keeps_nobody_out(tmp_path, cut):
    Journal.begin(tmp_path, settings()).close()
    path = tmp_path / JOURNAL
    path.write_bytes(path.read_bytes()[:cut])
    if cut is not None:
        with pytest.raises(RunError, match="Leave out --resume"):
            Journal.resume(tmp_path)

    Journal.begin(tmp_path, settings(seconds=7)).close()

    (line,) = path.read_text().splitlines()
    assert json.loads(line)["run"]["settings"]["limits"]["seconds"] == 7


@pytest.mark.parametrize("damage", [b"{}\n", b"[1]\n", b'{"run": 3}\n', b"\xff\xfe\n",
                                    b"[" * 10**5 + b"\n"])
def test_a_damaged_journal_is_refused_and_left_as_it_is(tmp_path, damage):
    path = tmp_path / JOURNAL
    path.write_bytes(damage + b'{"name": "x"')

    with pytest.raises(RunError, match="is damaged"):
        Journal.resume(tmp_path)

    assert path.read_bytes() == damage + b'{"name": "x"'


RESULT = {"name": "a.ipynb", "sha256": "", "status": "refused", "points": 0, "possible": 0,
          "learner": {"name": "a", "id": "", "source": "", "raw": ""}, "notes": [],
          "exercises": []}


@pytest.mark.parametrize("line", [
    3, None, {}, [], {**RESULT, "exercises": None}, {**RESULT, "points": "15"},
    {**RESULT, "learner": {"name": "a"}}, {**RESULT, "exercises": [{"status": "odd"}]},
    {**RESULT, "exercises": [3]}])
def test_a_line_that_is_no_result_is_one_line_of_text(tmp_path, line):
    Journal.begin(tmp_path, settings()).close()
    with open(tmp_path / JOURNAL, "a") as file:
        file.write(json.dumps(line) + "\n")

    with pytest.raises(RunError, match="is damaged"):
        Journal.resume(tmp_path)


def test_a_line_that_is_a_result_is_gone_on_with(tmp_path):
    Journal.begin(tmp_path, settings()).close()
    with open(tmp_path / JOURNAL, "a") as file:
        file.write(json.dumps(RESULT) + "\n")

    journal = Journal.resume(tmp_path)
    journal.close()

    assert list(journal.done) == [("a.ipynb", "")]


def test_going_on_with_fewer_submissions_is_refused_and_named(tmp_path):
    found = hand_in(tmp_path / "in", 3)
    journal = Journal.begin(tmp_path / "out", settings())
    cohort.grade_all(found, journal, fake_workers)
    with pytest.raises(RunError, match=r"2 submissions .*learner00\.ipynb, learner01"):
        journal.expect(["learner02.ipynb", "late.ipynb"])
    journal.expect([*(one.name for one in found), "late.ipynb"])
    journal.close()


def test_what_nobody_foresaw_ends_one_submission_not_the_class(tmp_path, monkeypatch):
    found = hand_in(tmp_path / "in", 2)
    monkeypatch.setattr(submissions, "read_file", lambda *_: 1 / 0)
    journal = Journal.begin(tmp_path / "out", settings())

    grades = cohort.grade_all(found, journal, fake_workers)
    journal.close()

    assert [r["reason"] for r in grades["results"]] == ["cannot be read (ZeroDivisionError)."] * 2


def test_a_run_with_other_checks_is_not_resumed(tmp_path):
    Journal.begin(tmp_path, settings()).close()
    path = tmp_path / JOURNAL
    path.write_text(path.read_text().replace(checks_digest(), "0" * 64))

    with pytest.raises(RunError, match="the checks have changed"):
        Journal.resume(tmp_path)


def test_a_run_of_another_torch_or_program_is_not_resumed(tmp_path):
    Journal.begin(tmp_path, settings()).close()
    path = tmp_path / JOURNAL
    line = json.loads(path.read_text())
    for key, other, said in (("torch", "1.13.1", "the version of torch has changed"),
                             ("schema", 99, "the form of the journal has changed")):
        path.write_text(json.dumps({"run": {**line["run"], key: other}}) + "\n")
        with pytest.raises(RunError, match=said):
            Journal.resume(tmp_path)


# ---- keys and cases

def test_cases_follow_from_the_key_alone():
    seeds = {judge.seed_of(key, id, k) for key in (b"a", b"b") for id in ("01.1", "01.2")
             for k in range(3)}
    assert len(seeds) == 12
    assert judge.seed_of(b"a", "01.1", 0) == judge.seed_of(b"a", "01.1", 0, draw=0)
    assert judge.seed_of(b"a", "01.1", 0) != judge.seed_of(b"a", "01.1", 0, draw=1)


def test_two_fresh_keys_differ():
    assert fresh_key() != fresh_key()


# ---- the whole process, sandboxed

COMMAND = [sys.executable, "-m", "dlsys.cli", "grade"]


def grade(*args: object, user: list[str] | None = None, **more) -> subprocess.CompletedProcess:
    return subprocess.run([*(user or []), *COMMAND, *map(str, args)], capture_output=True,
                          text=True, timeout=240, **more)


@pytest.fixture(scope="module")
def grader():
    with open_grader(settings()) as made:
        yield made


walled = pytest.mark.usefixtures("grader")


def results(folder: Path) -> dict[str, dict]:
    grades = json.loads((folder / GRADES).read_text())
    return {r["name"]: r for r in grades["results"]}


# Simulates a hand-in that makes the kernel end the process that grades it.
KILLER = """
import os, signal
from dlsys.grading.books import submitted_notebook as it
parse = it.parse
def dying(data, *rest):
    if b"KILLER" in data:
        os.kill(os.getpid(), signal.SIGKILL)
    return parse(data, *rest)
it.parse = dying
"""


@walled
def test_a_run_that_a_hand_in_killed_is_resumed_with_nothing_lost_or_graded_twice(tmp_path):
    """Several workers do it, too; they need no fixed port and leave the temporary folder empty."""
    hand_in(tmp_path / "in", 4)
    (tmp_path / "in/learner02_kills.ipynb").write_bytes(worksheet("KILLER"))
    (tmp_path / "sitecustomize.py").write_text(KILLER)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    (tmp_path / "in" / "zz_broken.ipynb").write_bytes(b"{")
    out, scratch = tmp_path / "out", tmp_path / "tmp"
    scratch.mkdir()
    command = [*COMMAND, str(tmp_path / "in"), "--out", str(out), "--workers", "1"]
    process = subprocess.run(command, capture_output=True, env=env, check=False)
    before = lines(out)
    assert process.returncode == -signal.SIGKILL
    assert json.loads(before[-1]) == {"begun": "learner02_kills.ipynb"}

    with socket.socket() as other:
        with contextlib.suppress(OSError):  # in use by somebody else: just as good
            other.bind(("127.0.0.1", 8787))
        done = grade(tmp_path / "in", "--out", out, "--workers", "2", "--resume",
                     env={**env, "TMPDIR": str(scratch)})

    assert done.returncode == 1, done.stderr  # the broken one was not graded
    assert "Warning" not in done.stderr
    assert "not finished, so graded last, in a process of its own: learner02_kills.ipynb." in (
        done.stdout)
    found = results(out)
    assert len(found) == 6
    assert found["learner02_kills.ipynb"]["status"] == "failed"
    assert "was killed each time" in found["learner02_kills.ipynb"]["reason"]
    assert found["learner00.ipynb"]["points"] == FULL - 3
    wrong = found["learner01.ipynb"]["exercises"][3]
    assert wrong["cases_held"] < wrong["cases"]
    assert wrong["broken"]
    assert found["zz_broken.ipynb"]["status"] == "refused"
    names = [result["name"] for result in journal_results(out)]
    assert len(names) == len(set(names)) == 6
    assert lines(out)[:len(before)] == before
    # torch leaves an empty folder for its compiler.
    assert [p.name for p in scratch.iterdir() if not p.name.startswith("torchinductor_")] == []


def lines(folder: Path) -> list[str]:
    return (folder / JOURNAL).read_text().splitlines()


@pytest.mark.nightly
@walled
def test_workers_that_are_lost_and_join_again_lose_nothing(tmp_path):
    from distributed import Client, LocalCluster, Security

    from dlsys.grading import cluster

    found = hand_in(tmp_path / "in", 7)  # six run at once
    journal = Journal.begin(tmp_path / "out", settings(seconds=20))
    lost = []

    def kill_one(_: dict) -> None:
        if not lost:
            lost.append(next(iter(client.run(os.getpid).values())))
            os.kill(lost[0], signal.SIGKILL)  # its nanny starts a new one

    with LocalCluster(n_workers=2, threads_per_worker=1, security=Security.temporary(),
                      dashboard_address=cluster.ANY_PORT) as local, Client(local) as client:
        grades = cohort.grade_all(
            found, journal, lambda jobs: cluster.spread(client, journal.settings, jobs), kill_one)
        alive = set(client.run(os.getpid).values())
    journal.close()

    assert lost
    assert lost[0] not in alive
    assert [r["status"] for r in grades["results"]] == ["graded"] * 7
    assert [r["points"] for r in grades["results"]] == [FULL - 3] * 7


def test_what_waited_behind_a_hand_in_that_ends_its_worker_is_graded(tmp_path, monkeypatch):
    """After two dead workers the scheduler gives up on it, and on what waited behind it."""
    from distributed import Client, LocalCluster, Security

    from dlsys.grading import cluster

    checks = versions()["checks"]
    monkeypatch.setattr(cluster, "work", lambda settings, data, *_: os._exit(1)
                        if data == b"ends" else {**cohort.refused("read"), "checks": checks})
    jobs = [cohort.Job(submissions.Submission(name, submissions.learner_named(name), tmp_path),
                       name, name.encode()) for name in ("ends", "waits", "waits, too")]

    with cluster.dask.config.set(cluster._CONFIG), LocalCluster(
            n_workers=1, threads_per_worker=1, security=Security.temporary(),
            dashboard_address=cluster.ANY_PORT) as local, Client(local) as client:
        found = {job.sha256: result["status"]
                 for job, result in cluster.spread(client, settings(), iter(jobs))}
        cluster.wait_for_restarts(client, 1)
        assert len(client.scheduler_info()["workers"]) == 1

    assert found == {"ends": "failed", "waits": "refused", "waits, too": "refused"}


def test_a_judge_that_stops_at_a_notebook_goes_on_with_the_next(grader, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(grader.judge, "grade", lambda *_: 1 / 0)
        stopped = grader.grade(worksheet())
    next_one = grader.grade(worksheet())

    assert stopped["status"] == "failed"
    assert "ZeroDivisionError" in stopped["reason"]
    assert next_one["points"] == FULL
    assert all(e["cases_held"] == e["cases"] > 0 for e in next_one["exercises"])


def test_an_errors_text_does_not_name_the_machine(grader):
    code = "import os\ndef predict(*_):\n    raise ValueError(os.uname().nodename)\n"
    said = entry(grader.grade(worksheet(e1=code)), "01.1")["message"]
    assert said.startswith("raised ValueError: sandbox ")


def test_a_learner_never_reads_the_text_of_the_graders_own_error(grader, monkeypatch):
    """It may contain the expected result."""
    def stop(*_):
        raise AssertionError("expected 0.73105")
    with monkeypatch.context() as patch:
        patch.setattr(grader.judge, "grade", stop)
        reason = grader.grade(worksheet())["reason"]
    assert "0.73105" not in reason
    assert re.search(r"\(AssertionError in test_grading_cohort\.py, line \d+\)", reason)


def test_a_scheduler_without_workers_is_named(tmp_path, monkeypatch):
    from distributed import LocalCluster

    from dlsys.grading import cluster

    monkeypatch.setattr(cluster, "WAIT_SECONDS", 1)
    with LocalCluster(n_workers=0, dashboard_address=cluster.ANY_PORT) as empty:
        run = cluster.remote(settings(), empty.scheduler_address, None)
        with pytest.raises(RunError, match="has no worker"):
            next(run(iter([])))


# Python may be in a folder that only root can enter, so this runs the command in its own mount
# namespace, where everybody can. Arguments: Python's folder, the closed folder above it.
AS_NOBODY = """set -e
aside=$(mktemp -d)
if [ -n "$2" ]; then
    mount --bind "$1" "$aside"; mount -t tmpfs -o mode=755 none "$2"
    mkdir -p "$1"; mount --move "$aside" "$1"
fi
rmdir "$aside"; shift 2
exec setpriv --reuid=65534 --regid=65534 --clear-groups env -i PATH="$PATH" "$@"
"""


@pytest.mark.nightly  # test_hostile always grades as an ordinary user
@walled
@pytest.mark.skipif(os.geteuid() != 0, reason="all tests are by an ordinary user already")
def test_an_ordinary_user_grades_behind_the_same_walls(tmp_path):
    python = Path(sys.base_prefix)
    closed = [p for p in (*reversed(python.parents), python) if p.stat().st_mode & 0o005 != 0o005]
    nobody = ["unshare", "--mount", "sh", "-c", AS_NOBODY, "sh", str(python),
              str(closed[0]) if closed else ""]
    with tempfile.TemporaryDirectory() as open_folder:  # pytest's own are closed to others
        Path(open_folder).chmod(0o777)
        hand_in(Path(open_folder, "in"), 1)

        done = grade(Path(open_folder, "in"), "--out", Path(open_folder, "out"), user=nobody)

        assert done.returncode == 0, done.stderr
        result = results(Path(open_folder, "out"))["learner00.ipynb"]
    assert result["points"] == FULL - 3
    assert result["wall"].startswith("Linux namespaces")


@walled
def test_without_namespaces_it_refuses_and_says_what_to_do(tmp_path):
    hand_in(tmp_path / "in", 1)

    done = grade(tmp_path / "in", "--out", tmp_path / "out", user=_without_namespaces())

    assert done.returncode == 2
    assert "cannot be built here" in done.stderr
    assert "--sandbox=none" in done.stderr
    assert not (tmp_path / "out" / GRADES).exists()


def _without_namespaces() -> list[str]:
    """A prefix that denies a command new namespaces, like a container or a hardened kernel."""
    script = ("import ctypes, os, sys\nfrom dlsys.grading.walls import seccomp\n"
              "del seccomp.DENIED['execve'], seccomp.DENIED['execveat']\n"
              "seccomp.install(ctypes.CDLL(None, use_errno=True))\n"
              "os.execv(sys.argv[1], sys.argv[1:])")
    return [sys.executable, "-c", script]


@walled
def test_without_a_sandbox_on_request_each_result_says_so(tmp_path):
    hand_in(tmp_path / "in", 1)

    done = grade(tmp_path / "in", "--out", tmp_path / "out", "--sandbox", "none")

    assert done.returncode == 0, done.stderr
    result = results(tmp_path / "out")["learner00.ipynb"]
    assert result["points"] == FULL - 3
    assert result["wall"].startswith("none")
    assert "Sandbox: none" in done.stdout
