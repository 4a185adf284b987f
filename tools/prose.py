"""The frozen texts of `dlsys_model`, made once: `python -m tools.prose`.

`prose.txt.xz` is the prose of lessons and guides; `signatures.txt.xz` has, for each exercise, its
signature and the promises in its docstring. Lessons change, but trained weights depend on these
texts, so only run this by hand.
"""

import ast
import json
import lzma
import re

from dlsys_helpers import paths
from tools import lessons

# Not prose: comments, tags, formulas, pictures, code blocks, table rows.
_OUT = (r"<!--.*?-->", r"<style.*?</style>", r"<[^>\n]+>", r"\$\$.*?\$\$", r"```.*?```",
        r"!\[[^\]]*\]\([^)]*\)", r"^\s*\|.*$", r"https?://\S+")
_PLAIN = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "...",
                        "×": "x", "→": "->", "·": "*", "−": "-", "\u00a0": " "})


def prose(markdown: str) -> str:
    """The sentences in ASCII, one paragraph per line, without paragraphs that have a formula."""
    markdown = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", markdown)  # a link keeps its words
    for pattern in _OUT:
        markdown = re.sub(pattern, "", markdown, flags=re.S | re.M)
    found = [" ".join(paragraph.replace("**", "").split())
             for paragraph in markdown.translate(_PLAIN).split("\n\n")]
    return "\n\n".join(text for text in found if len(text) > 2 and "$" not in text
                       and text.isascii() and not text.startswith(("```", "---", ":::")))


def snapshot() -> str:
    """The prose of the lessons in stage order, then of the guides."""
    cells = [cell.source for path in paths.lessons() if not path.stem.startswith("00")
             for cell in lessons.Source(path).cells if cell.cell_type == "markdown"]
    guides = [path.read_text("utf-8") for path in sorted((paths.ROOT / "book").glob("guide_*.md"))]
    return "\n\n".join(filter(None, map(prose, cells + guides))) + "\n"


def signatures() -> str:
    """For each exercise, a line with its signature and below it the start of its docstring.

    An empty line separates the pairs.
    """
    found = []
    for path in sorted(paths.EXERCISES.glob("*.ipynb")):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            if cell["metadata"].get("dlsys", {}).get("role") == "exercise" and (
                    cell["cell_type"] == "code"):
                found.append(_pair(ast.parse("".join(cell["source"])).body[-1]))
    return "\n\n".join(pair for pair in found if pair.isascii()) + "\n"


def _pair(function: ast.FunctionDef) -> str:
    promise = ast.get_docstring(function).split("\n\n")[0]
    return f"def {function.name}({ast.unparse(function.args)}):\n{' '.join(promise.split())}"


def main() -> None:
    """Write both texts."""
    for name, text in (("prose", snapshot()), ("signatures", signatures())):
        path = paths.ROOT / f"src/dlsys_model/{name}.txt.xz"
        path.write_bytes(lzma.compress(text.encode("ascii"), preset=9))
        print(f"{path.name}: {len(text):,} characters in {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
