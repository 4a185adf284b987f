"""The front end as files for a page without a kernel."""

from pathlib import Path

HERE = Path(__file__).parent
# anywidget wants a module; a page opened from disk may only load a classic script.
MODULE_END = "\nexport {"


def write_assets(folder: Path, name: str = "explorer") -> list[Path]:
    """Write a front end, "explorer" or "guess": a classic script that mounts itself, and its style.

    Returns the two paths. Raises ValueError when the script has no single export to cut off.
    """
    source = (HERE / f"{name}.js").read_text(encoding="utf-8")
    if source.count(MODULE_END) != 1:
        raise ValueError(f"{name}.js: expected one export block at its end.")
    body = source.split(MODULE_END)[0]
    files = {f"{name}.js": f"(() => {{\n{body}\nmountAll();\n}})();\n",
             f"{name}.css": (HERE / f"{name}.css").read_text(encoding="utf-8")}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]
