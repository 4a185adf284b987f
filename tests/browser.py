"""Find, start and stop Chromium and JupyterLab for tests, without touching the network."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from dlsys.lab import EXTENSIONS, START
from dlsys_helpers.paths import ROOT
from tools import chromium

START_S = 60  # JupyterLab on a cold disk


ELSEWHERE = re.compile(r"^https?://(?!127\.0\.0\.1[:/])")
# Block requests at name lookup: a handler for each request would make a page 10 % slower.
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


@contextmanager
def open_browser():
    """Start a headless Chromium, or skip the test and say why if none is installed."""
    path = chromium.find()
    if path is None:
        reason = f"browser tests skipped: none of {', '.join(chromium.NAMES)} is on the PATH"
        print(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path,
                                             args=[*chromium.FLAGS, OFFLINE])
        yield browser
        browser.close()


def offline_page(browser, **options):
    """A page of `open_browser`, which reaches only this machine; see `page.refused`."""
    page = browser.new_page(**options)
    page.refused, page.problems = [], []
    page.on("requestfailed", lambda request: page.refused.append(request.url)
            if ELSEWHERE.match(request.url) else None)
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    return page


PHONE = {"width": 390, "height": 900}


def page_with_script(folder: Path, name: str, data: str) -> Path:
    """Write a page with only the element that a script of the website fills, and its data."""
    assets = ROOT / "book" / "assets"
    form, script = (path.read_text("utf-8") for path in (assets / "site" / "form.js",
                                                         assets / name / f"{name}.js"))
    file = folder / "page.html"
    file.write_text(f'<meta charset="utf-8"><div id="{name}"></div><script>{data}</script>'
                    f"<script>{form}</script><script>{script}</script>", "utf-8")
    return file


def forgetful_phone(tab, address):
    """Open a page in a tab as on a phone whose browser remembers nothing yet; return the tab.

    Many tests share one tab, because a new one starts a process.
    """
    tab.emulate_media(media="screen")
    tab.set_viewport_size(PHONE)
    tab.goto(address)
    tab.evaluate("localStorage.clear()")
    tab.problems.clear()
    tab.reload()
    return tab


def violations(page, **options) -> list[tuple[str, str]]:
    """Return axe's violations, each as (rule, first element); options go to axe."""
    found = Axe().run(page, **options).response["violations"]
    return [(v["id"], v["nodes"][0]["html"][:100]) for v in found]


# ---- JupyterLab -----------------------------------------------------------------------------
@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: its address, its token and the folder it serves."""

    url: str
    token: str
    folder: Path

    def address(self, notebook: str) -> str:
        """The address that opens a notebook of the folder."""
        return f"{self.url}/lab/tree/{notebook}?token={self.token}"


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _private_settings(home: Path, theme: str) -> dict:
    """An environment in which JupyterLab neither reads nor changes the user's own settings."""
    names = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_RUNTIME_DIR": "runtime",
             "JUPYTER_DATA_DIR": "data", "JUPYTERLAB_SETTINGS_DIR": "settings",
             "JUPYTERLAB_WORKSPACES_DIR": "workspaces", "IPYTHONDIR": "ipython"}
    for folder in names.values():
        (home / folder).mkdir(parents=True, exist_ok=True)
    settings = home / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True, exist_ok=True)
    for name, values in {"themes": {"theme": f"JupyterLab {theme.title()}"},
                         "notification": {"fetchNews": "false", "checkForUpdates": False}}.items():
        (settings / f"{name}.jupyterlab-settings").write_text(json.dumps(values))
    here = {**os.environ, **{name: str(home / folder) for name, folder in names.items()}}
    here.pop("JUPYTER_DEFAULT_PROVISIONER_NAME", None)  # start kernels as make lab does
    return here


def _wait_for(lab: Lab, process: subprocess.Popen, log: Path):
    """Wait until the server answers; raise RuntimeError with its log if it does not."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{lab.url}/api?token={lab.token}", timeout=2).close()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start within {START_S} s:\n{log.read_text()[-2000:]}")


def _stop(process: subprocess.Popen):
    """Stop the server, which first stops its kernels; kill it if it hangs."""
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()


@contextmanager
def running_lab(folder: Path, home: Path, theme: str = "light"):
    """Run JupyterLab on `folder` with its settings in `home`; stop it and its kernels at the end.

    Yields a `Lab`. `theme` is "light" or "dark".
    """
    lab = Lab(f"http://127.0.0.1:{(port := _free_port())}", "test", folder)
    home.mkdir(parents=True, exist_ok=True)
    log = home / "lab.log"
    command = [sys.executable, "-c", START, "--no-browser", "--allow-root",
               "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}",
               "--ServerApp.port_retries=0", f"--IdentityProvider.token={lab.token}",
               f"--ServerApp.root_dir={folder}", "--LabApp.expose_app_in_browser=True",
               f"--LabApp.extra_labextensions_path={EXTENSIONS}"]
    with log.open("w") as out, subprocess.Popen(
            command, env=_private_settings(home, theme), stdout=out, stderr=out) as process:
        try:
            _wait_for(lab, process, log)
            yield lab
        finally:
            _stop(process)


# The page shows "idle" before there is a kernel, so ask the session itself.
KERNEL_IS_IDLE = """() => {
  const context = window.jupyterapp?.shell.currentWidget?.sessionContext;
  return context?.isReady && context.session?.kernel?.status === "idle";
}"""


def open_notebook(page, lab: Lab, notebook: str):
    """Open a notebook in JupyterLab and return once its kernel is idle."""
    page.goto(lab.address(notebook))
    page.wait_for_function(KERNEL_IS_IDLE, timeout=START_S * 1000)


def lab_command(page, name: str, **arguments):
    """Run one of JupyterLab's commands and return once it is done."""
    page.evaluate("([name, arguments]) => window.jupyterapp.commands.execute(name, arguments)"
                  ".then(() => null)", [name, arguments])


def run_all(page):
    """Run every cell, and return once the last one is done."""
    lab_command(page, "notebook:run-all-cells")
