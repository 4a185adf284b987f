"""Build the book: ``python -m tools.book``; ``--serve`` also shows it on this machine.

``--site v1.0`` builds it into this folder of a website; "" is the root.

The pages come from three places: book/, where they are written by hand, book_pages.py, which
generates them, and the notebooks. A page shows a dressed copy of its notebook: markdown cells are
in a block that names their step, explorers run without a kernel, figures carry their alt text. The
notebooks themselves stay plain, and readers download the plain ones.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import hashlib
import re
import shutil
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import nbformat
import yaml
from nbformat import NotebookNode

from dlsys_helpers import catalog, explorers
from dlsys_helpers.catalog import sentence_case
from dlsys_helpers.errors import UserError
from dlsys_helpers.lesson_names import YOUR_MODEL
from dlsys_helpers.paths import EXERCISES, NOTEBOOKS, ROOT
from dlsys_helpers.stages import Stage, stage
from tools import (
    book_diffs,
    book_doors,
    book_finder,
    book_finish,
    book_gallery,
    book_glossary,
    book_home,
    book_incidents,
    book_model,
    book_pages,
    book_placement,
    book_present,
    book_traps,
    book_units,
    frames,
    gpu_tables,
    install_cell,
    social_cards,
    versions,
    words,
)

BOOK = ROOT / "book"
FRAMES_INSIDE = 5_000  # compressed bytes; an explorer's page contains its frames up to this size

# Roles whose markdown gets a separate block; course.css colours them.
FRAMED = {"folklore", "exercise", "keep", "quiz", "next"}
FENCE = ":" * 9
HEADING = re.compile(r"\A## Trap ([\d.]+)(?: \(core\))?: ")  # as views.heading writes it
WAY = re.compile(r"\[([\d.]+) ([^\n]+?)\]\(#(?:[^()]|\([^()]*\))*\)")  # as views.to_trap writes it
GUESS_FIRST = """

```{raw} html
<script src="../site/guess_first.js" data-lesson></script>
<link rel="stylesheet" href="../explorers/guess.css">
<script defer src="../site/flow.js"></script>
<script defer src="../explorers/guess.js"></script>
<nav class="flow" aria-label="Parts of this lesson"><ol></ol>
<p><button type="button" data-parts>The whole lesson on one page</button>
<button type="button" data-core>Core path only</button>
<button type="button" data-everything>Show all answers</button></p></nav>
```
"""
# Run by import: the console script fails in a folder with a space in its name. Page trees are
# large and in use: a collector that searches them every 700 objects finds little to free.
JUPYTER_BOOK = ("import gc; gc.set_threshold(100_000, 20, 20); "
                "import dlsys; from jupyter_book.cli.main import main; main()")


class BookError(UserError):
    """The book cannot be built; the message says what to do."""


def read(path: Path) -> NotebookNode:
    """The notebook at `path`. Raises BookError when it is missing or damaged."""
    try:
        return nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise BookError(f"{path.parent.name}/{path.name}: missing. Run: make build") from None
    except nbformat.reader.NotJSONError:
        raise BookError(f"{path.relative_to(ROOT)}: not a notebook, or cut short. "
                        "Run: make build") from None


def dress(notebook: NotebookNode) -> NotebookNode:
    """The notebook as the page shows it; its dlsys metadata say lesson or exercise."""
    notebook.cells = [cell for cell in notebook.cells if not install_cell.is_install(cell)]
    kind = "exercise" if notebook.metadata.dlsys.view == "exercise" else "trap"
    if kind == "trap" and notebook.metadata.dlsys.stage:
        words.linked(notebook.cells, notebook.metadata.dlsys.stage)
    labelled: dict[str, None] = {}  # in page order
    for cell in notebook.cells:
        facts = cell.metadata.get("dlsys", {})
        if cell.cell_type == "code":
            dress_code(cell, facts)
            continue
        trap = facts.get("trap")
        cell.source = dress_text(cell, facts.get("role", ""), trap, kind)
        if trap and trap not in labelled:
            labelled[trap] = None
            cell.source = f"({book_pages.label(kind, trap)})=\n{numbered(cell.source, trap)}"
    if said := order_note([*labelled]):
        notebook.cells[0].source += f"\n\n{said}"
    if any("guess" in cell.metadata.get("tags", []) for cell in notebook.cells):
        heading, text = split_heading(notebook.cells[0].source)
        notebook.cells[0].source = f"{heading}{GUESS_FIRST}\n{text}"
    return notebook


def with_ways(notebook: NotebookNode, folder: str, home: book_doors.Home) -> NotebookNode:
    """The page's notebook with links to the learner's copy below its first text."""
    file = book_doors.files(stage(notebook.metadata.dlsys.stage))[folder]
    notebook.cells[0].source += book_doors.row(home, file)
    return notebook


def order_note(traps: list[str]) -> str:
    """A sentence on traps that are out of numerical order; "" if none are."""
    apart = next(((a, b) for a, b in pairwise(traps)
                  if int(b.partition(".")[2]) != int(a.partition(".")[2]) + 1), None)
    return ("The traps come in the order in which to read them. A number never changes, so "
            f"{apart[1]} follows {apart[0]}.") if apart else ""


def with_gallery(notebook: NotebookNode) -> NotebookNode:
    """Link the gallery's name in the notebook to its page. Raises ValueError if it is not named."""
    named, led = f"*{book_gallery.TITLE}*", f"[{book_gallery.TITLE}](../gallery.md)"
    telling = [cell for cell in notebook.cells if named in cell.source]
    if not telling:
        raise ValueError(f"{YOUR_MODEL}: does not name the gallery, expected {named}.")
    for cell in telling:
        cell.source = cell.source.replace(named, led)
    return notebook


def dress_text(cell: NotebookNode, role: str, trap: str | None, kind: str) -> str:
    """A markdown cell as the page shows it: a mark, or its text in the block of its step."""
    if role == "step":
        return mark(cell)
    source = WAY.sub(lambda way: book_pages.link("trap", way[1], f"{way[1]} {way[2]}"), cell.source)
    source = link_guides(source)
    if role == "exercise" and trap:
        source = link_across(source, kind, trap)
    return frame(source, role)


@functools.cache
def guide_titles() -> dict[str, str]:
    """Map the heading of each guide, and of the page on searching, to its page."""
    return {(BOOK / f"{guide}.md").read_text("utf-8").partition("\n")[0].removeprefix("# "): guide
            for guide in [*GUIDES, "method"]}


def link_guides(source: str) -> str:
    """Link each guide that the text names in italics; only the site has the guides' pages."""
    for title, guide in guide_titles().items():
        named = r"\s+".join(map(re.escape, title.split()))
        source = re.sub(rf"\*{named}\*", f"[{title}](../{guide}.md)", source)
    return source


def mark(cell: NotebookNode) -> str:
    """A step's heading as a MyST div; book_sphinx.py begins the step's block there.

    The div of the step Why has the fault as a second paragraph; all others are one line.
    """
    step = cell.id.removesuffix("-step").rpartition("-")[2]
    text = cell.source.removeprefix("### ")
    name, _, fault = text.partition(": ") if step == "why" else (text, "", "")
    told = f"{name}\n\n**{sentence_case(fault)}**" if fault else name
    return f"{FENCE}{{div}} step-mark step-{step}\n{told}\n{FENCE}"


def link_across(source: str, kind: str, trap: str) -> str:
    """The text of an exercise with a link to its place on the worksheet, or back to its trap."""
    there = {"trap": ("exercise", "See it on the worksheet"),
             "exercise": ("trap", "Read the trap again")}
    other, text = there[kind]
    return f"{source}\n\n{book_pages.link(other, trap, text)}."


def numbered(source: str, trap: str) -> str:
    """A trap's heading with its permanent number in front; book_sphinx.py marks the core ones."""
    return re.sub(rf"\A## (?!{trap})", f"## {trap} ", HEADING.sub("## ", source))


def frame(source: str, role: str) -> str:
    """Markdown in the block of its step. A leading heading stays outside, for the contents."""
    if role not in FRAMED or (role == "quiz" and "<details" not in source):
        return source
    heading, body = split_heading(source)
    if role == "folklore":
        body = book_pages.told_and_measured(body)
    block = f"{FENCE}{{div}} role-{role}\n{body}\n{FENCE}" if body else ""
    return f"{heading}\n\n{block}".strip()


def split_heading(source: str) -> tuple[str, str]:
    """The heading on the first line, or "", and the text after it."""
    first, _, rest = source.strip().partition("\n")
    return (first, rest.strip()) if first.startswith("#") else ("", source.strip())


def dress_code(cell: NotebookNode, facts: dict) -> None:
    """Fold, replace or describe a code cell and its outputs, according to its role."""
    cell.metadata["mystnb"] = {}
    if facts.get("explorer"):
        mount_explorer(cell, facts["explorer"])
        return
    for output in cell.get("outputs", []):
        if "text/html" in output.get("data", {}):
            output.data["text/html"] = gpu_tables.labelled(output.data["text/html"])
    alts = [alt_text(o, cell.id) for o in cell.get("outputs", []) if book_traps.is_figure(o)]
    if alts:
        cell.metadata.setdefault("tags", []).append("figure")
        cell.metadata.mystnb["image"] = {"alt": " ".join(alts)}
    if facts.get("role") == "setup":
        fold(cell, setup_prompt(cell))
    # The form and its answer say all that the code says.
    elif {"guess", "measured"} & {*cell.metadata.get("tags", [])}:
        cell.metadata.tags.append("remove-input")
    elif book_pages.folded(cell):
        fold(cell, "How it is drawn" if alts else folded_prompt(cell.source))


def setup_prompt(cell: NotebookNode) -> str:
    """The label of a folded set-up cell; it lists the names of a cell that only sets values."""
    if "parameters" in cell.metadata.get("tags", []):
        return "Settings"
    lines = ast.parse(cell.source).body
    if lines and all(isinstance(line, ast.Assign) for line in lines):
        return f"Settings: {', '.join(ast.unparse(t) for line in lines for t in line.targets)}"
    return "Setup"


def folded_prompt(code: str) -> str:
    """The label of folded code: the helpers that it defines, or else that it measures."""
    names = [] if "claim(" in code else book_pages.defined_names(code)
    return f"Helpers: {book_pages.in_a_sentence(names)}" if names else "How this was measured"


def mount_explorer(cell: NotebookNode, name: str) -> None:
    """Replace the code and the stored picture by the explorer, which needs no kernel here."""
    cell.metadata.tags.append("remove-input")
    at = f"../explorers/{frames_file(name)}" if has_frames_file(name) else ""
    cell.outputs = [nbformat.v4.new_output(
        "display_data", {"text/html": explorers.load(name).static_html(at)})]


def has_frames_file(name: str) -> bool:
    """Whether an explorer's frames are in a separate file, so that its page opens at once."""
    return frames.RECORD.entry(name).get("bytes", 0) > FRAMES_INSIDE


def frames_file(name: str) -> str:
    """The file of an explorer's frames; its name changes with them, because of browser caches."""
    return f"{name}-{hashlib.sha256(explorers.load(name).frames).hexdigest()[:8]}.js"


def write_frames(folder: Path) -> None:
    """Write the frames that are not inside their page."""
    for name in filter(has_frames_file, explorers.names()):
        (folder / frames_file(name)).write_text(explorers.load(name).frames_script(), "utf-8")


def fold(cell: NotebookNode, prompt: str) -> None:
    cell.metadata.tags.append("hide-input")
    cell.metadata.mystnb["code_prompt_show"] = prompt


def alt_text(output: NotebookNode, cell_id: str) -> str:
    """A figure's alt text, as its cell stored it. Raises BookError if there is none."""
    alt = output.metadata.get("image/png", {}).get("alt", "")
    if not alt:
        raise BookError(f"cell {cell_id}: figure without alt text. "
                        "Draw it with dlsys_helpers.plots and alt=, then run: make build")
    return alt


def assemble(source: Path, folder: str | None = None) -> list[Stage]:
    """Write the book's source folder from scratch; returns the stages in it.

    folder: where the book is in a website of several versions, see versions.page.
    """
    stages = catalog.written()
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(BOOK, source, ignore=shutil.ignore_patterns("_build"))
    print("book: pages from lessons and checks, whose wrong answers run again where the record is "
          "stale", flush=True)
    lessons = {s.number: read(NOTEBOOKS / f"{s.stem}.ipynb") for s in stages}
    pages = {"concepts": book_units.page([*lessons]), "glossary": book_glossary.page(),
             "symptoms": book_finder.page(lessons),
             "gallery": book_gallery.page(),
             "review_changes": book_diffs.page(), "incidents": book_incidents.page(),
             "placement": book_placement.page(),
             **book_pages.generated(lessons)}
    about = {"changelog": (ROOT / "CHANGELOG.md").read_text("utf-8"),
             "versions": versions.page(versions.current(), folder, versions.tagged_releases())}
    below = (book_traps.pages(lessons) | book_pages.wrong_answers(lessons)
             | book_present.pages(lessons))
    (source / "assets" / "finder" / "rows.js").write_text(book_finder.script(lessons), "utf-8")
    (source / "assets" / "diffs" / "data.js").write_text(book_diffs.script(), "utf-8")
    (source / "assets" / "incidents" / "data.js").write_text(book_incidents.script(), "utf-8")
    (source / "assets" / "placement" / "data.js").write_text(book_placement.script(), "utf-8")
    index = source / "index.md"
    config = settings(written_settings(), folder)
    public = config["repository"]
    home = book_doors.Home(public["url"], public["branch"], folder or "")
    start = book_home.start_page(index.read_text("utf-8"), lessons, home)
    index.write_text(start.replace("{{ model }}", book_model.panel(starts=True)), "utf-8")
    how = source / "how_to_use.md"
    how.write_text(book_home.how_long(how.read_text("utf-8"), lessons), "utf-8")
    written = source / "your_model.md"
    written.write_text(book_model.filled_in(written.read_text("utf-8")), "utf-8")
    for name, text in (pages | about | below).items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / f"{name}.md").write_text(text, "utf-8")
    save(dress(with_gallery(read(NOTEBOOKS / f"{YOUR_MODEL}.ipynb"))), source / "notebooks")
    for entry in stages:
        print(f"book: lesson {entry.number}, with the frames of its explorers", flush=True)
        worksheet = read(EXERCISES / f"{entry.stem}.ipynb")
        for name, shown in ((NOTEBOOKS.name, lessons[entry.number]), (EXERCISES.name, worksheet)):
            save(with_ways(dress(shown), name, home), source / name)
    save_yaml(contents(stages, list(pages), list(below)), source / "_toc.yml")
    save_yaml(config, source / "_config.yml")
    for front_end in ("explorer", "guess"):
        explorers.write_assets(source / "assets" / "explorers", front_end)
    write_frames(source / "assets" / "explorers")
    book_model.write_assets(source / "assets")
    book_traps.write_pictures(lessons, source / "assets" / "figures")
    if config["html"]["baseurl"]:
        social_cards.write_cards(source / "assets" / "cards")
    return stages


def save(notebook: NotebookNode, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    number = notebook.metadata.dlsys.stage
    nbformat.write(notebook, folder / f"{stage(number).stem if number else YOUR_MODEL}.ipynb")


def save_yaml(value: dict, path: Path) -> None:
    path.write_text(yaml.safe_dump(value, sort_keys=False), "utf-8")


# Written pages, in the order of the sidebar.
GUIDES = ["guide_loss", "guide_optimizer", "guide_schedule", "guide_hyperparameters",
          "guide_norm", "guide_init", "guide_finetune", "guide_adapter", "guide_compression",
          "guide_scale", "guide_serving"]
OWN_CODE = ["method", "watch", "same"]
TEACHING = ["instructors", "present", "room", "hand_out", "hub", "grading", "grading_trust",
            "grading_kubernetes"]


def contents(stages: list[Stage], pages: list[str], below: list[str]) -> dict:
    """The table of contents: each lesson with its worksheet, then the pages for looking up.

    below: pages to nest under the page named like their folder, such as traps/01-1 under traps.
    """
    chapters = [{"file": f"notebooks/{s.stem}", "title": f"{s.number}. {s.title}",
                 "sections": [{"file": f"exercises/{s.stem}", "title": "Worksheet"}]}
                for s in stages]
    chapters += [{"file": f"notebooks/{YOUR_MODEL}", "title": "Your model",
                  "sections": [{"file": "your_model"}]}]
    parts = {"Decide": GUIDES, "Look up": [*pages, *OWN_CODE], "Instructors": TEACHING,
             "About": ["how_to_use", "accessibility", "changelog", "versions"]}
    written = [{"caption": caption, "chapters": [chapter(page, below) for page in files]}
               for caption, files in parts.items()]
    return {"format": "jb-book", "root": "index",
            "parts": [{"caption": "Stages", "chapters": chapters}, *written]}


def chapter(page: str, below: list[str]) -> dict:
    """A page's entry in the contents, with the pages of its folder below it."""
    sections = [{"file": name} for name in below if name.startswith(f"{page}/")]
    return {"file": page} | ({"sections": sections} if sections else {})


def settings(config: dict, folder: str | None = None) -> dict:
    """The book's configuration; if the repository is public, buttons and addresses lead there.

    The buttons of a release, in its folder, lead to its tag. Every version of a page gives search
    engines the address of the newest version as the canonical one.
    """
    if folder:
        config["repository"]["branch"] = f"v{versions.current()}"
    if config["repository"]["url"]:
        config["html"]["use_repository_button"] = True
    config["html"]["baseurl"] = address(config)
    return config


def address(config: dict) -> str:
    """The public address of the pages, ending in a slash; "" without a public repository.

    It comes from the configuration; without one it is the repository's GitHub Pages address.
    """
    url, own = config["repository"]["url"], config["html"].get("baseurl")
    found = book_doors.GITHUB.fullmatch(url)
    if url and not (own or found):
        raise BookError(f"book/_config.yml: got the repository {url!r}, expected "
                        "https://github.com/owner/name, or beside it html: baseurl, the address of "
                        "the pages.")
    if own or not found:
        return own.rstrip("/") + "/" if own else ""
    host = f"{found['owner'].lower()}.github.io"
    return f"https://{host}/" + ("" if found["name"].lower() == host else f"{found['name']}/")


def render(out: Path) -> Path:
    """Run Jupyter Book on out/_build/source; returns the folder of pages next to it.

    Any warning stops the build: raises BookError with the warnings.
    """
    built = out / "_build"
    for old in (built / "html", built / ".doctrees"):
        shutil.rmtree(old, ignore_errors=True)
    run = subprocess.run(
        [sys.executable, "-c", JUPYTER_BOOK, "build", built / "source", "--path-output", out,
         "-W", "--keep-going", "-q"], cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        raise BookError(f"jupyter-book stopped:\n{(run.stdout + run.stderr)[-3000:]}")
    return built / "html"


def build(out: Path = BOOK, folder: str | None = None) -> Path:
    """Build the book into out/_build/html, print a line for each step, and return that folder.

    Raises BookError.
    """
    stages = assemble(out / "_build" / "source", folder)
    print("book: Jupyter Book", flush=True)
    html = render(out)
    print("book: downloads, style sheets, what robots read", flush=True)
    book_doors.write_copies(html, stages)
    book_finish.finish(html, "" if folder else address(written_settings()))
    return html


def written_settings() -> dict:
    return yaml.safe_load((BOOK / "_config.yml").read_text("utf-8"))


def publish(folder: str, site: Path = ROOT / "site") -> Path:
    """Build the book and put its pages into the website's folder, "" for its root; returns it.

    Raises BookError if the folder belongs to another version or already exists.
    """
    expected = versions.folder_of(versions.current())
    if folder not in ("", expected):
        raise BookError(f"folder of the website: got {folder!r}, expected {expected!r}, that of "
                        f"version {versions.current()} in pyproject.toml, or none for its root.")
    target = site / folder
    if (target / "index.html").exists():
        raise BookError(f"{target}: pages stand there. Move them away, then run it again.")
    return shutil.copytree(build(folder=folder), target, dirs_exist_ok=True)


def serve(html: Path, port: int) -> None:
    """Show the built pages on this machine until Ctrl+C. Raises BookError for a busy port."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(html))
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise BookError(f"port {port}: {error.strerror}. Choose another one, for example: "
                        f"python -m tools.book --serve --port {port + 1}") from None
    print(f"The book: http://127.0.0.1:{port}/ (Ctrl+C ends it)", flush=True)
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the book into book/_build/html.")
    parser.add_argument("--serve", action="store_true", help="show it on 127.0.0.1 afterwards")
    parser.add_argument("--port", type=int, default=8000, help="port for --serve (8000)")
    parser.add_argument("--site", metavar="FOLDER",
                        help='put it into site/FOLDER as a version of the website; "" for its root')
    args = parser.parse_args()
    try:
        html = build() if args.site is None else publish(args.site)
        print(f"built {(html / 'index.html').relative_to(ROOT)}", flush=True)
        if args.serve:
            serve(html, args.port)
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
