"""What `dlsys watch` prints: one line per cause, plain characters, and its short answers."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks import watch_page
from dlsys_watch import __version__, command, places
from dlsys_watch.formats import Finding
from dlsys_watch.report import Report
from dlsys_watch.rules import all_rules
from dlsys_watch.settings import Settings


class Softmax:
    follows = ()
    id, trap, sound = "softmax-twice", "03.1", True


def told(capsys, *findings) -> list[str]:
    report = Report(Settings())
    for message, line in findings:
        report.add(Softmax, message, places.Place("/somewhere/train.py", line))
    report.gather()
    return capsys.readouterr().err.splitlines()


def test_a_cause_at_several_lines_is_told_once(capsys):
    first, also = told(capsys, ("rows sum to 1.000", 41), ("rows sum to 1.002", 208),
                       ("rows sum to 0.999", 212))
    assert first.startswith("/somewhere/train.py:41  rows sum to 1.000  [softmax-twice] trap 03.1")
    assert also == "/somewhere/train.py:41  also at lines 208 and 212  [softmax-twice]"


def test_two_causes_of_one_rule_are_two_lines(capsys):
    lines = told(capsys, ("nothing of `encoder` moves", 3), ("nothing of `head` moves", 5))
    assert [line.split("  ")[0][-2:] for line in lines] == [":3", ":5"]


@pytest.mark.parametrize("name", ["a\x1b[2Jb.py", "a\nb.py", "a\u202eb.py", "a\x9b1mb.py",
                                  "\udcff.py"])
def test_names_cannot_steer_the_terminal(capsys, name):
    report = Report(Settings())
    report.add(Softmax, f"of {name}", places.Place(f"/somewhere/{name}", 1))
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert printed[:-1].isprintable()
    assert places.printable("Zahlen größer 3 × 4") == "Zahlen größer 3 × 4"


def test_a_script_with_such_a_name(tmp_path):
    file = tmp_path / "tr\x1b[31main.py"
    file.write_text("import torch.nn.functional as F, torch\n"
                    "F.cross_entropy(torch.randn(8, 3, requires_grad=True).softmax(1),\n"
                    "                torch.arange(8) % 3)\n")
    for arguments in ([str(file)], [str(file) + "?"]):
        done = subprocess.run([sys.executable, "-m", "dlsys_watch", *arguments], text=True,
                              capture_output=True, timeout=60, check=False,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert "tr\\x1b[31main.py" in done.stderr
        assert "\x1b" not in done.stderr


def test_a_message_counts_what_happened():
    """Of four passes, three or only the first are erased; a checkpoint's inner ones don't count."""
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    import dlsys_watch

    def accumulate(erases) -> list[str]:
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.randn(8, 4), torch.arange(8) % 3
        with dlsys_watch.watching(hints=True) as found:
            for step in range(32):
                if erases == "each":
                    opt.zero_grad()
                (nn.functional.cross_entropy(model(x), y) / 4).backward()
                if erases == "first" and step % 4 == 0:
                    opt.zero_grad()
                if erases == "third" and step % 4 == 2:   # as accelerate does: three are lost
                    opt.zero_grad()
                if step % 4 == 3:
                    opt.step()
        return [f.message for f in found]

    assert [m[:44] for m in accumulate("each")] == ["the gradients of 3 of 4 backward passes are "]
    assert [m[:44] for m in accumulate("first")] == ["the gradients of 1 of 4 backward passes are "]
    assert [m[:44] for m in accumulate("third")] == ["the gradients of 3 of 4 backward passes are "]
    blocks, head = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), nn.Linear(8, 2)
    opt = torch.optim.Adam([*blocks.parameters(), *head.parameters()], lr=1e-2)
    with dlsys_watch.watching(hints=True) as found:
        for _ in range(8):
            h = torch.randn(16, 8, requires_grad=True)
            for block in blocks:
                h = checkpoint(block, h, use_reentrant=True).relu()
            opt.zero_grad()
            nn.functional.cross_entropy(head(h), torch.arange(16) % 2).backward()
            opt.step()
    assert found == []


@pytest.mark.parametrize("masked", [True, False])
def test_padding_is_no_end_of_a_text(masked):
    """The end token is the padding; the chat ends with a different token, which is a label."""
    import torch

    from dlsys_watch.rules.end_never_learned import ends_of_text

    ids = torch.tensor([[5, 6, 7, 2, 2, 2], [5, 2, 6, 7, 8, 9]])
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]]) if masked else None
    assert ends_of_text(ids, 2, mask).nonzero().tolist() == [[1, 1]]


def test_every_rule_is_explained_in_ten_lines_without_torch(capsys):
    for rule in all_rules():
        assert command.main(["explain", rule.id]) == 0
        shown = capsys.readouterr().out
        assert len(shown.splitlines()) <= 10
        assert rule.trap in shown
        assert rule.reads in shown
    code = ("import sys; from dlsys_watch.command import main; main(['explain', 'no-zero-grad']); "
            "print('torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          check=True)
    assert "Repaired:" in done.stdout
    assert done.stdout.endswith("False\n")


def test_the_explanations_are_those_of_the_rules():
    file = watch_page.EXPLANATIONS
    assert json.loads(file.read_text("utf-8")) == watch_page.explanations(), (
        ".venv/bin/python -m benchmarks.watch_page")


@pytest.mark.parametrize("arguments", [["explain"], ["explain", "nothing"], ["--steps", "0", "x"]])
def test_a_wrong_question_is_one_line(capsys, arguments):
    assert command.main(arguments) == command.BAD_INPUT
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_knows_its_version_and_its_name(capsys, monkeypatch):
    for called, name in (("/bin/dlsys-watch", "dlsys-watch"), ("/bin/dlsys", "dlsys watch"),
                         ("/x/dlsys_watch/__main__.py", "python -m dlsys_watch")):
        monkeypatch.setattr(sys, "argv", [called])
        assert command.parser().prog == name
    with pytest.raises(SystemExit) as end:
        command.main(["--version"])
    assert (end.value.code, capsys.readouterr().out) == (0, f"dlsys-watch {__version__}\n")


def test_steps_end_the_watch_of_a_script(tmp_path, capsys):
    file = tmp_path / "train.py"
    file.write_text("import torch, torch.nn.functional as F\nfrom torch import nn\n"
                    "net, x, y = nn.Linear(4, 3), torch.randn(9, 4), torch.arange(9) % 3\n"
                    "opt = torch.optim.SGD(net.parameters(), 0.1)\nfor step in range(6):\n"
                    "    opt.zero_grad()\n    F.cross_entropy(net(x), y).backward()\n"
                    "    opt.step()\nprint(F.cross_entropy.__code__.co_filename[-13:])\n"
                    "F.cross_entropy(net(x).softmax(1), y)\n")
    for steps, seen in (("3", "functional.py"), ("300", "unctional.py")):
        done = subprocess.run([sys.executable, "-m", "dlsys_watch", "--steps", steps, str(file)],
                              capture_output=True, text=True, timeout=60, check=True)
        assert ("softmax twice" in done.stderr) is (steps == "300")
        assert (seen in done.stdout) is (steps == "3")


def test_a_finding_without_a_book_names_no_address(monkeypatch, tmp_path):
    from dlsys_watch import formats

    monkeypatch.setattr(formats, "BOOK", tmp_path)
    monkeypatch.setattr(formats, "published", lambda: "")
    monkeypatch.delenv("DLSYS_BOOK", raising=False)
    assert Finding("a", "03.1", "", 0, "m", True).text() == "(no line of yours)  m  [a] trap 03.1"
