"""Child processes: no path reaches a shell unquoted, and a test that waits for one sees it die.

Folders have spaces in their names. `ruff` (S602 to S605) refuses `shell=True` and `os.system`, but
misses what we test here: a script that code assembles for `sh -c`, and an interpreter in a line of
text with arguments after it.
"""

import ast
import re

import pytest
from rooms import Running

from dlsys_helpers.paths import ROOT

FOLDERS = ("benchmarks", "deploy", "lessons", "src", "tests", "tools")
SHELLS = {"sh", "bash", "dash", "zsh", "cmd", "powershell"}
INTERPRETER = re.compile(r"#!\{sys\.executable\}|\{sys\.executable\}\s|\bsys\.executable \+")


def unquoted(source: str) -> list[int]:
    """The lines where a variable text is a shell script, or an interpreter lacks quotes."""
    return sorted(node.lineno for node in ast.walk(ast.parse(source)) if is_unquoted(node))


def is_unquoted(node: ast.AST) -> bool:
    if isinstance(node, ast.List | ast.Tuple):
        return has_made_script(node.elts)
    made = isinstance(node, ast.JoinedStr | ast.BinOp)
    return made and INTERPRETER.search(ast.unparse(node)) is not None


def has_made_script(words: list[ast.expr]) -> bool:
    """Whether these are `sh -c SCRIPT` with a script other than a literal or a module's constant.

    Pass what varies as an argument: `"$1"`.
    """
    known = [ast.unparse(word) for word in words]
    return any(shell.strip("'") in SHELLS and flag in ("'-c'", "'-lc'", "'-ec'", "'/c'")
               and not isinstance(script, ast.Constant) and not text.isupper()
               for shell, flag, script, text in zip(
                   known, known[1:], words[2:], known[2:], strict=False))


@pytest.mark.parametrize(("line", "found"), [
    ('["bash", "-c", command]', True),
    ('["nice", "sh", "-c", f"exec {sys.executable}"]', True),
    ('["sh", "-c", "exec \\"$1\\"", "sh", sys.executable]', False),
    ('["sh", "-c", SCRIPT, "sh", path]', False),
    ('[sys.executable, "-c", code]', False),
    ('f"Run: {sys.executable} -m ipykernel"', True),
    ('"Run: " + sys.executable + " -m ipykernel"', True),
    ('f"#!{sys.executable}"', True),
    ('f"This is {sys.executable}."', False),
    ('f"run({sys.executable!r}, x)"', False),
])
def test_what_counts_as_unquoted(line, found):
    assert bool(unquoted(line)) is found


def test_nothing_reaches_a_shell_unquoted():
    here = {f"{path.relative_to(ROOT)}:{line}" for folder in FOLDERS
            for path in (ROOT / folder).rglob("*.py") for line in unquoted(path.read_text("utf-8"))}
    assert sorted(here) == []


def test_a_room_that_dies_before_it_opens_is_not_waited_for(tmp_path):
    with pytest.raises(AssertionError, match="did not start: half a word"):
        Running(tmp_path, first="print('half a word', end='', flush=True); raise SystemExit(3)")
