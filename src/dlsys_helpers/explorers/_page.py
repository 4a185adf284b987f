"""The front end as files for a page without a kernel."""

from pathlib import Path

HERE = Path(__file__).parent
# anywidget wants a module; a page opened from disk may only load a classic script.
MODULE_END = "\nexport {"


def write_assets(folder: Path) -> list[Path]:
    """Write explorer.js (a classic script that mounts every explorer) and explorer.css.

    Returns the two paths. Raises ValueError when explorer.js has no single export to cut off.
    """
    source = (HERE / "explorer.js").read_text(encoding="utf-8")
    if source.count(MODULE_END) != 1:
        raise ValueError("explorer.js: expected one export block at its end.")
    body = source.split(MODULE_END)[0]
    files = {"explorer.js": f"(() => {{\n{body}\nmountAll();\n}})();\n",
             "explorer.css": (HERE / "explorer.css").read_text(encoding="utf-8")}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]
