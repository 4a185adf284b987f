"""`dlsys parts`: the table, and my_parts.py, which never loses a learner's work."""

import json

import pytest

from dlsys import cli, my_parts
from dlsys_helpers import paths, progress
from dlsys_model.part_table import CATALOGUE


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A learner with all worksheets of two stages, and three parts passed."""
    monkeypatch.setenv("DLSYS_PROGRESS", str(tmp_path))
    monkeypatch.setattr(paths, "MY_WORK", tmp_path / "work")
    (tmp_path / "work").mkdir()
    for stem in ("05_normalization", "09_scaling"):
        file = f"{stem}.ipynb"
        (tmp_path / "work" / file).write_bytes((paths.SOLUTIONS / file).read_bytes())
    for id in ("05.2", "05.3", "09.5"):
        progress.record(id, "pass")
    return tmp_path / "work"


def edit(work, stem: str, old: str, new: str) -> None:
    """Change a worksheet, as a learner does."""
    path = work / f"{stem}.ipynb"
    book = json.loads(path.read_text("utf-8"))
    for cell in book["cells"]:
        cell["source"] = "".join(cell["source"]).replace(old, new)
    path.write_text(json.dumps(book), "utf-8")


def run(capsys) -> str:
    assert cli.main(["parts"]) == 0
    return capsys.readouterr().out


def test_the_table_says_whose_each_part_is(work, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    short = run(capsys)
    assert short.count("✓ yours") == 3
    assert "torch.nn.utils.clip_grad_norm_" not in short
    assert cli.main(["parts", "--all"]) == 0
    said = capsys.readouterr().out
    assert said.count("✓ yours") == 3
    assert f"3 of {len(CATALOGUE)} parts are yours." in said
    assert all(part.function in said for part in CATALOGUE)
    assert "torch.nn.utils.clip_grad_norm_" in said


def test_the_file_is_a_module_with_ones_own_answers(work, capsys):
    run(capsys)
    source = (work / "my_parts.py").read_text("utf-8")
    space = {}
    exec(source, space)
    assert [name for name in ("told_apart", "noisy_modules", "epoch_indices") if name in space] == [
        "told_apart", "noisy_modules", "epoch_indices"]
    assert space["epoch_indices"](10, 4, 3, 0, 0, True) == [5, 8]
    assert "# ---- 05.2 told_apart: " in source
    assert source.index("# ---- 09.5") < source.index("# ---- 05.2"), "the catalogue's order"


def test_what_stands_below_the_mark_is_kept(work, capsys):
    run(capsys)
    path = work / "my_parts.py"
    with path.open("a", encoding="utf-8") as file:
        file.write("mine = 'größer'\n")
    edit(work, "05_normalization", "calls.append(seen)", "calls += [seen]")
    run(capsys)
    text = path.read_text("utf-8")
    assert "calls += [seen]" in text
    assert text.endswith(f"{my_parts.MARK}\nmine = 'größer'\n")


@pytest.mark.parametrize("change", [
    lambda text: text.replace("told_apart(l", "told_apart( l"), lambda text: f"# mine\n{text}",
    lambda text: text.replace(my_parts.MARK, "# mark"), lambda text: "my own file\n",
    lambda text: "", lambda text: "\udcff"])
def test_a_file_changed_above_the_mark_is_left_alone(work, capsys, change):
    run(capsys)
    path = work / "my_parts.py"
    data = change(path.read_text("utf-8")).encode("utf-8", "surrogateescape")
    path.write_bytes(data)
    assert cli.main(["parts"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("dlsys: my_parts.py: was changed above the mark, and is left as it is.")
    assert said.count("\n") == 1
    assert path.read_bytes() == data


def test_a_full_disk_loses_nothing(work, capsys, monkeypatch):
    run(capsys)
    before = (work / "my_parts.py").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(my_parts.os, "replace", full)
    assert cli.main(["parts"]) == 2
    assert "cannot be written (No space left on device)" in capsys.readouterr().err
    assert (work / "my_parts.py").read_bytes() == before


def test_two_meanings_of_one_name_are_told(work, capsys):
    for stem, value, start in (("05_normalization", 1, "def told_apart("),
                               ("09_scaling", 2, "def epoch_indices(")):
        edit(work, stem, start, f"def _help():\n    return {value}\n\n\n{start}")
    for stem, line in (("05_normalization", "    shares = []"),
                       ("09_scaling", "    generator = torch.Generator().manual_seed(seed")):
        edit(work, stem, line, f"    _help()\n{line}")
    assert "Note: _help is defined differently in 05.2 and in an earlier part" in run(capsys)


def test_a_broken_answer_is_noted_and_left_out(work, capsys):
    edit(work, "05_normalization", "def told_apart(layers: list,", "def told_apart(layers: list")
    said = run(capsys)
    assert "Note: 05.2 told_apart: its cell does not parse" in said
    assert f"2 of {len(CATALOGUE)} parts are yours." in said
    assert "def told_apart" not in (work / "my_parts.py").read_text("utf-8")


def test_without_an_answer_no_file_is_written(work, capsys, monkeypatch):
    monkeypatch.setenv("DLSYS_PROGRESS", "off")
    said = run(capsys)
    assert "0 of" in said
    assert "Progress is not kept: DLSYS_PROGRESS is off." in said
    assert not (work / "my_parts.py").exists()
