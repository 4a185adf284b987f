"""The first cell of lessons and worksheets; outside this repository it installs what is missing.

The package's name, version and address come from pyproject.toml and book/_config.yml. A learner can
name another wheel in the variable DLSYS_WHEEL, or put one next to the notebook. The cell belongs to
no lesson: outputs, sweep and records depend on all cells except this one.
"""

from __future__ import annotations

from collections.abc import Iterable

import yaml
from nbformat import NotebookNode

from dlsys import arrival, release
from dlsys_helpers.paths import ROOT
from tools import versions

ROLE = "install"
CELL = '''# Installs what your Python lacks for this notebook, as on Colab. Else it does nothing.
# DLSYS_WHEEL names another wheel of the course: a file or an address.
def arrive(version, address, needs, began=None):
    try:
        from dlsys.arrival import arrive as finish
    except ImportError:
        import glob, os, site, subprocess, sys, time
        began, name = time.time(), f"dlsys_helpers-{{version}}-py3-none-any.whl"
        wheel = os.environ.get("DLSYS_WHEEL") or max(
            glob.glob("dlsys_helpers-*.whl"), default=address)
        pip = wheel and subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--retries=1",
             "--timeout=15", "--force-reinstall", wheel],
            capture_output=True, encoding="utf-8", errors="replace")
        sys.path += [site.getusersitepackages()] * bool(site.ENABLE_USER_SITE)
        for module in [m for m in sys.modules if m.startswith("dlsys")]:
            del sys.modules[module]  # of an older course
        put = f"put the file {{name}} into this notebook's folder, {{os.getcwd()}}"
        try:
            from dlsys.arrival import arrive as finish
        except ImportError:
            said = f"pip: {{pip.stderr if pip.returncode else 'older'}}" if wheel else "(none)"
            advice = {{
                "(none)": f"{{put}}, or choose the kernel of the course's folder .venv.",
                "pip: older": f"{{wheel}} is older than this notebook. Instead, {{put}}.",
                "file does not exist": f"{{wheel}} is not there. Instead, {{put}}.",
                "supported wheel": f"the browser renamed {{wheel}}. Name it {{name}}.",
                "is invalid": f"{{wheel}} is damaged. Fetch it again, or {{put}}.",
                "externally-managed": f"{{sys.executable}} belongs to the system. Choose a "
                                      "kernel of your own: python3 -m venv env.",
                "different Python": f"its Python is {{sys.version.split()[0]}}, expected 3.11 or "
                                    "newer. Choose another kernel.",
                "No space left": f"the disk of {{sys.prefix}} is full. Free 1 GB.",
                "No module named pip": "this Python has no pip. Run in a terminal: "
                                       f"{{sys.executable}} -m ensurepip.",
                "Errno 13": f"{{sys.prefix}} cannot be written. Use a Python of your own.",
                "Errno 30": f"{{sys.prefix}} cannot be written. Use a Python of your own.",
                "": f"{{wheel}} cannot be fetched. Connect (behind a proxy, set HTTPS_PROXY), "
                    f"or {{put}}."}}
            stop = RuntimeError("The course is not installed in this kernel: " + next(
                text for sign, text in advice.items() if sign in said)
                + " Then run this cell again.")
            stop._render_traceback_ = lambda: [str(stop)]  # the sentence alone
            raise stop from None
    finish(version, needs, began)

arrive("{version}", "{address}", "{needs}")'''


def text(code: Iterable[str]) -> str:
    """The install cell for a notebook with these code cells."""
    needs = " ".join(release.beyond_base("\n".join(code)))
    return CELL.format(version=versions.current(), address=address(), needs=needs)


def address() -> str:
    """The address of the release's wheel; "" while the course has no public home."""
    config = yaml.safe_load((ROOT / "book/_config.yml").read_text("utf-8"))
    home, version = config["repository"]["url"].rstrip("/"), versions.current()
    return f"{home}/releases/download/v{version}/{arrival.wheel_name(version)}" if home else ""


def is_install(cell: NotebookNode) -> bool:
    return cell["metadata"].get("dlsys", {}).get("role") == ROLE
