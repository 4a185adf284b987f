"""The set-up: one line for each thing that can be missing; floors, pins and the README."""

import ast
import hashlib
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image

from dlsys import cli, lab, needed
from dlsys_helpers import catalog, paths
from dlsys_helpers.errors import UserError
from dlsys_helpers.paths import ROOT
from dlsys_helpers.stages import Stage
from tools import lock, moving_picture, readme

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
USED = PROJECT["dependencies"] + [pin for name in lock.LESSONS for pin in EXTRAS[name]]
ALL = PROJECT["dependencies"] + [pin for name in EXTRAS if name not in lock.APART
                                 for pin in EXTRAS[name]]
# name, or name with one version constraint: the short form of conda's MatchSpec.
MATCH_SPEC = re.compile(r"[a-z0-9_][a-z0-9_.-]*((=|==|>=|<=|<|>)\d+(\.\d+)*(\.\*)?)?")
OWN_FILES = ("Makefile", "requirements.lock", "environment.yml", "LICENSE", "LICENSE-text",
             "README.md", ".ci/run", "tools/setup.sh", "tools/lock.py",
             "tools/readme.py")

# A stub for Python: it copies itself into the environment, and its pip prints what a test sets.
PYTHON = """#!/bin/sh
case "$*" in
    --version) echo "Python $FAKE_VERSION" ;;
    "-c import sys; sys.exit("*) exit "${FAKE_OLD:-0}" ;;
    *print*version_info*) echo "$FAKE_VERSION" ;;
    *ensurepip*) exit "${FAKE_NO_VENV:-0}" ;;
    "-m venv "*) mkdir -p .venv/bin; cp "$0" .venv/bin/python
                 echo "command = $0 -m venv $(pwd -P)/.venv" >.venv/pyvenv.cfg ;;
    "-m pip install -r "*) echo "pip $*" >>calls
                           [ -z "${FAKE_PIP:-}" ] || eval "$FAKE_PIP" ;;
    *" --only-binary "*) echo "pip $*" >>calls
               [ -n "${FAKE_PIP:-}" ] && eval "$FAKE_PIP" || echo "$FAKE_UV" >.venv/bin/uv
               chmod +x .venv/bin/uv ;;
    "-m pip config list") printf '%s\n' "$FAKE_CONFIG" ;;
    *) echo "pip $*" >>calls ;;
esac
"""
# The stub for uv, unless a test changes it; without uv the set-up continues with pip.
UV = """#!/bin/sh
echo "uv $*" >>calls
"""


class Tree:
    """A clone in a folder with an awkward name; stubs replace Python and df."""

    def __init__(self, folder: Path):
        self.root, self.bin = folder / "a clone, ünï", folder / "bin"
        (self.root / "tools").mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(ROOT / "tools/setup.sh", self.root / "tools")
        (self.root / "requirements.lock").write_text("dlsys-no-such-package==1\n")
        (self.root / "requirements.hashes").write_text("")
        (self.root / "pyproject.toml").write_text("")
        self.program("python3", PYTHON)
        self.free(50)

    def program(self, name: str, text: str) -> Path:
        path = self.bin / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def free(self, gb: float) -> None:
        """From now on df reports this much free space."""
        kib = int(gb * 1e9 / 1024)
        self.program("df", f"#!/bin/sh\necho Head\necho /dev/x 0 0 {kib} 0% /\n")

    def setup(self, **env: str) -> subprocess.CompletedProcess:
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        clean = {k: v for k, v in os.environ.items()
                 if not k.startswith(("PIP_", "UV_", "TORCH", "WHEELHOUSE", "HASHES"))}
        return subprocess.run(
            ["sh", "tools/setup.sh", *filter(None, [env.pop("PART", "")])], cwd=self.root,
            text=True, capture_output=True, timeout=60,
            env={**clean, "PATH": path, "PYTHON": "python3", "FAKE_VERSION": "3.12",
                 "FAKE_UV": UV, "FAKE_CONFIG": "", **env})

    def refusal(self, **env: str) -> str:
        """The one line on stderr of a set-up that must fail."""
        done = self.setup(**env)
        assert done.returncode == 1, done
        assert done.stderr.count("\n") == 1, done.stderr
        assert len(done.stderr) < 300
        return done.stderr

    def calls(self) -> list[str]:
        return (self.root / "calls").read_text().splitlines()


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


# ---- what may be missing

def test_old_python_is_named_with_the_remedy(tree):
    line = tree.refusal(FAKE_OLD="1", FAKE_VERSION="3.8.18")
    assert "got Python 3.8.18, expected Python 3.11 or newer" in line
    assert "make lab PYTHON=python3.12" in line


def test_no_python_is_said(tree):
    assert "python9: not found, expected Python 3.11 or newer" in tree.refusal(PYTHON="python9")


def test_missing_venv_module_names_the_debian_package(tree):
    assert "apt install python3.12-venv" in tree.refusal(FAKE_NO_VENV="1")


def test_too_little_disk_is_said_before_anything_is_made(tree):
    tree.free(3.9)
    assert "got 3 GB free in this folder, expected 11 GB" in tree.refusal()
    assert not (tree.root / ".venv").exists()


def test_what_the_environment_already_takes_counts_as_free(tree):
    assert tree.setup().returncode == 0
    (tree.root / "pyproject.toml").write_text("changed")
    tree.program("du", "#!/bin/sh\nprintf '7000000\\t.venv'\n")
    tree.free(3.9)
    assert tree.setup().returncode == 0


def test_a_scarce_disk_does_without_the_cache_of_pip(tree):
    tree.free(12)
    assert tree.setup(FAKE_PIP='echo "no cache: $PIP_NO_CACHE_DIR" >>calls').returncode == 0
    assert "no cache: 1" in tree.calls()


def test_a_scarce_disk_keeps_no_cache_of_uv(tree):
    tree.free(12)
    assert tree.setup(FAKE_UV=f'{UV}mkdir "$UV_CACHE_DIR"; ls .venv >>calls').returncode == 0
    assert "uv-cache" in tree.calls()
    assert not (tree.root / ".venv/uv-cache").exists()


def test_disk_that_runs_full_is_told_from_no_network(tree):
    full = "echo 'OSError: [Errno 28] No space left on device'; exit 1"
    line = tree.refusal(FAKE_PIP=full)
    assert "disk: it ran full" in line
    assert ".venv/setup.log" in line


def test_no_network_with_the_real_pip(tree):
    with socket.socket() as closed:  # bound, never listening: every connection is refused
        closed.bind(("127.0.0.1", 0))
        line = tree.refusal(
            FAKE_PIP=f'"{sys.executable}" "$@" || exit 1', PIP_CONFIG_FILE=os.devnull,
            PIP_RETRIES="1", PIP_INDEX_URL=f"http://127.0.0.1:{closed.getsockname()[1]}/simple")
    assert "network: the package index cannot be reached" in line
    assert "dlsys-no-such-package" in (tree.root / ".venv/setup.log").read_text()


def test_any_other_failure_names_the_log(tree):
    assert "The last lines of .venv/setup.log say why" in tree.refusal(FAKE_PIP="exit 1")


# ---- when it installs, and when it does not

def test_first_run_installs_the_lock_then_the_package_and_the_second_does_nothing(tree):
    first, calls = tree.setup(), tree.calls()
    assert first.returncode == 0, first.stderr
    assert calls[0].endswith("pip install --only-binary :all: -r .venv/uv.lock")
    assert re.fullmatch(r"uv==[\d.]+\n", (tree.root / ".venv/uv.lock").read_text())
    assert re.search("uv pip install .* -r .venv/hashed.lock$", calls[1])
    assert "install --no-deps --no-build-isolation -e ." in calls[2]
    second = tree.setup(PYTHON="python9")  # a ready environment needs no other Python
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert tree.calls() == calls


TWO_PARTS = "# Written\ntorch==1\nnvidia-x==1\n# Besides, for tests:\nruff==1\n"


def lists(tree) -> list[list[str]]:
    """The pins of each list that uv was told to install, in their order."""
    return [line.split() for line in tree.calls() if line.startswith("torch==1")]


# The last word of uv's call is the list; a comment is no pin.
SHOWS = f"{UV}grep -v '^#' \"$(eval echo \\${{$#}})\" | paste -sd ' ' >>calls\n"


def test_lab_installs_the_learners_part_and_the_other_targets_add_the_rest(tree):
    (tree.root / "requirements.lock").write_text(TWO_PARTS)
    learner, both = ["torch==1", "nvidia-x==1"], ["torch==1", "nvidia-x==1", "ruff==1"]
    assert tree.setup(PART="lab", FAKE_UV=SHOWS).returncode == 0
    assert lists(tree) == [learner]
    assert tree.setup(FAKE_UV=SHOWS).returncode == 0
    assert lists(tree) == [learner, both]
    for part in ("lab", ""):  # both are there now, so neither part installs anything
        assert (tree.setup(PART=part).stdout, lists(tree)) == ("", [learner, both])


def test_a_set_up_of_all_serves_lab_too_and_a_new_lock_neither(tree):
    (tree.root / "requirements.lock").write_text(TWO_PARTS)
    tree.setup(FAKE_UV=SHOWS)
    assert tree.setup(PART="lab").stdout == ""
    (tree.root / "requirements.lock").write_text(TWO_PARTS.replace("Written", "Newer"))
    tree.setup(PART="lab", FAKE_UV=SHOWS)
    tree.setup(FAKE_UV=SHOWS)
    assert [len(pins) for pins in lists(tree)] == [3, 2, 3]


def test_a_learner_keeps_what_works_when_the_rest_cannot_be_installed(tree):
    (tree.root / "requirements.lock").write_text(TWO_PARTS)
    tree.setup(PART="lab")
    tree.refusal(FAKE_UV=f"{UV}exit 2", FAKE_PIP="exit 1")
    assert tree.setup(PART="lab").stdout == ""
    assert tree.setup(FAKE_UV=SHOWS).returncode == 0


def test_the_learners_part_comes_without_cuda_where_that_is_asked_for(tree):
    (tree.root / "requirements.lock").write_text(TWO_PARTS)
    tree.setup(PART="lab", TORCH="cpu", FAKE_UV=SHOWS)
    tree.setup(FAKE_UV=SHOWS)
    assert lists(tree) == [["torch==1"], ["torch==1", "ruff==1"]]


@pytest.mark.parametrize("refuses", [{"FAKE_UV": f"{UV}exit 2"}, {"FAKE_PIP": "true"}])
def test_where_uv_cannot_pip_installs_the_lock(tree, refuses):
    done = tree.setup(**refuses)
    assert done.returncode == 0, done.stderr
    assert [call for call in tree.calls() if call.endswith("pip install -r .venv/hashed.lock")]
    for said in (done.stdout, (tree.root / ".venv/setup.log").read_text()):
        assert "setup: uv could not install the packages (" in said


def test_the_screen_says_why_uv_gave_up(tree):
    done = tree.setup(FAKE_UV=f"{UV}echo 'cause: invalid peer certificate: UnknownIssuer'; exit 2")
    assert "(invalid peer certificate); pip goes on" in done.stdout or \
        "(UnknownIssuer); pip goes on" in done.stdout


@pytest.mark.parametrize(("words", "told"), [
    ("error: Request failed after 3 retries: dns error", "index cannot be reached"),
    ("error sending request for url", "index cannot be reached"),
    ("invalid peer certificate: UnknownIssuer", "pip config set global.cert FILE"),
    ("something else", "The last lines of")])
def test_the_words_of_uv_for_a_network_that_fails_are_known(tree, words, told):
    """They matter where pip cannot take over, as with PyTorch's own index."""
    assert told in tree.refusal(TORCH="cpu", FAKE_UV=f"{UV}echo '{words}'; exit 2")


def test_what_pip_says_counts_where_pip_went_on(tree):
    line = tree.refusal(FAKE_UV=f"{UV}echo 'dns error'; exit 2",
                        FAKE_PIP='case "$*" in *--only-binary*) echo "$FAKE_UV" >.venv/bin/uv;; '
                                 "*) echo a package is broken; exit 1;; esac")
    assert "The last lines of" in line


def test_uv_is_told_how_pip_reaches_the_network(tree):
    names = ("SSL_CERT_FILE", "HTTPS_PROXY", "UV_INSECURE_HOST", "UV_HTTP_TIMEOUT")
    values = "|".join(f"${name}" for name in names)
    config = ("global.cert='/etc/own ca.pem'\nglobal.proxy='http://p:1'\n"
              ":env:.default-timeout='180'\nglobal.trusted-host='a.example b.example'")
    clean = dict.fromkeys(names, "")
    tree.setup(**clean, FAKE_UV=f'{UV}echo "{values}" >>calls', FAKE_CONFIG=config)
    assert "/etc/own ca.pem|http://p:1|a.example b.example|180" in tree.calls()
    (tree.root / "pyproject.toml").write_text("changed")
    tree.setup(**clean | {"SSL_CERT_FILE": "/mine"}, FAKE_UV=f'{UV}echo "{values}" >>calls',
               FAKE_CONFIG=config)
    assert [call for call in tree.calls() if call.startswith("/mine|")]


def test_uv_is_told_the_places_that_pip_was_told(tree):
    tree.setup(FAKE_UV=f'{UV}echo "$UV_DEFAULT_INDEX|$UV_INDEX|$UV_FIND_LINKS" >>calls',
               FAKE_CONFIG="global.extra-index-url='\\nfile:///b\\nfile:///c'\n"
                           "global.find-links='/d /e'\nglobal.index-url='https://example.org/a'")
    assert "https://example.org/a| file:///b file:///c|/d,/e" in tree.calls()


CUDA = "nvidia-x==1 ; platform_system == 'Linux'\ncuda-y==1\ntriton==1\ntorch==1\nnvidia==1\n"


def test_torch_for_cpus_comes_without_the_libraries_of_cuda_and_stays(tree):
    (tree.root / "requirements.lock").write_text(CUDA)
    told = f'{UV}echo "backend $UV_TORCH_BACKEND" >>calls; cat "$(eval echo \\${{$#}})" >>calls\n'
    assert tree.setup(TORCH="cpu", FAKE_UV=told).returncode == 0
    calls = tree.calls()
    assert "backend cpu" in calls
    assert calls[calls.index("backend cpu") + 1:][:2] == ["torch==1", "nvidia==1"]
    assert tree.setup().stdout == ""  # a later `make lab` keeps the choice
    assert tree.calls() == calls


def test_torch_for_cpus_is_never_replaced_by_the_other_one(tree):
    assert "The last lines of .venv/setup.log" in tree.refusal(TORCH="cpu", FAKE_UV=f"{UV}exit 2")
    assert not [call for call in tree.calls() if call.startswith("pip") and "hashed" in call]


def test_an_environment_with_cuda_has_to_go_first(tree):
    tree.setup()
    assert "Delete .venv" in tree.refusal(TORCH="cpu")
    assert "TORCH: got gpu, expected cpu" in tree.refusal(TORCH="gpu")


def test_a_wheelhouse_is_the_only_place_to_look(tree):
    (tree.root / "a stick").mkdir()
    told = f'{UV}echo "$UV_OFFLINE $PIP_NO_INDEX $PIP_FIND_LINKS" >>calls'
    assert tree.setup(WHEELHOUSE="a stick", FAKE_UV=told).returncode == 0
    places = tree.calls()[2].removeprefix("1 1 file://")
    assert places.endswith("a%20clone,%20ünï/a%20stick".replace(",", "%2C"))
    assert "--no-index" in tree.calls()[1]


def test_a_wheelhouse_that_is_none_or_lacks_something_is_named(tree):
    assert "WHEELHOUSE: got stick, which is no folder" in tree.refusal(WHEELHOUSE="stick")
    (tree.root / "stick").mkdir()
    line = tree.refusal(WHEELHOUSE="stick", FAKE_PIP="echo No matching distribution; exit 1")
    assert "WHEELHOUSE: a package is not in" in line


def test_a_wheelhouse_is_filled_from_a_ready_environment(tree):
    assert "Run: make setup" in tree.refusal(PART="wheelhouse")
    tree.setup()
    assert "complete" in tree.setup(PART="wheelhouse").stdout
    assert [call.partition(" wheel ")[2] for call in tree.calls()[-2:]] == [
        f"--no-deps --wheel-dir wheelhouse -r .venv/{name}.lock" for name in ("uv", "hashed")]


# ---- hashes

HASHED = "a==1 --hash=sha256:aa --hash=sha256:ab\ntorch==1 --hash=sha256:cc\n"
PINS = "a==1 ; platform_system == 'Linux'\ntorch==1\nb==1\n"


def hashed_list(tree, **how: str) -> list[str]:
    """The part of PINS that uv has to install, with the hashes of HASHED."""
    (tree.root / "requirements.lock").write_text(PINS)
    (tree.root / "requirements.hashes").write_text(HASHED)
    assert tree.setup(**how).returncode == 0
    return (tree.root / ".venv/hashed.lock").read_text().splitlines()


def test_each_pin_is_installed_with_the_hashes_of_its_files(tree):
    assert hashed_list(tree) == [
        "a==1 ; platform_system == 'Linux' --hash=sha256:aa --hash=sha256:ab",
        "torch==1 --hash=sha256:cc", "b==1"]


def test_files_of_another_index_are_not_compared_with_those_of_the_common_one(tree):
    assert hashed_list(tree, TORCH="cpu")[1:] == ["torch==1", "b==1"]


@pytest.mark.parametrize("how", [{"HASHES": "off"}, {"WHEELHOUSE": "stick"}])
def test_a_wheelhouse_and_an_index_with_its_own_builds_go_without(tree, how):
    (tree.root / "stick").mkdir()
    assert hashed_list(tree, **how) == PINS.splitlines()


def test_without_the_file_of_hashes_nothing_is_installed(tree):
    (tree.root / "requirements.hashes").unlink()
    assert "git checkout requirements.hashes" in tree.refusal()
    assert not (tree.root / "calls").exists()


def test_a_file_that_is_not_the_locked_one_is_named_and_pip_does_not_take_it_instead(tree):
    line = tree.refusal(FAKE_UV=f"{UV}echo 'Hash mismatch for `a==1`'; exit 2")
    assert "another file than the one in requirements.hashes" in line
    assert "HASHES=off" in line
    assert not [call for call in tree.calls() if "pip install -r" in call]


def test_the_real_pip_refuses_a_file_that_is_not_the_locked_one(tmp_path):
    """The lists are in pip's own format, with a marker before the hashes."""
    package = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(package, "w") as wheel:
        wheel.writestr("a-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: a\nVersion: 1\n")
        wheel.writestr("a-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
                                              "Tag: py3-none-any\n")
        wheel.writestr("a-1.dist-info/RECORD", "")
    right = hashlib.sha256(package.read_bytes()).hexdigest()
    codes = []
    for digest in (right, "0" * 64):
        (tmp_path / "list").write_text(f"a==1 ; python_version > '3' --hash=sha256:{digest}\n")
        codes.append(subprocess.run(
            [sys.executable, "-m", "pip", "--isolated", "download", "--no-deps", "--no-index",
             "--find-links", tmp_path, "-d", tmp_path / "out", "-r", tmp_path / "list"],
            capture_output=True, text=True))
    assert [done.returncode for done in codes] == [0, 1]
    assert "DO NOT MATCH THE HASHES" in codes[1].stderr


def test_every_pin_has_its_hashes_and_they_are_of_no_other_version():
    lines = lock.HASHES.read_text("utf-8").splitlines()
    assert [line.split()[0] for line in lines] == lock.pins(lock.LOCK.read_text("utf-8"))
    assert all(re.fullmatch(r"\S+==\S+( --hash=sha256:[0-9a-f]{64})+", line) for line in lines)


def test_hashes_are_written_one_line_for_each_pin(monkeypatch):
    said = ("a==1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:ab\n"
            "uv==0.1 \\\n    --hash=sha256:bb\n")
    asked = []
    monkeypatch.setattr(lock.subprocess, "run", lambda *_, input, **__: asked.append(input) or (
        subprocess.CompletedProcess([], 0, said, "")))
    assert lock.hashed("# Written\na==1 ; platform_system == 'Linux'\n").splitlines() == [
        "a==1 --hash=sha256:aa --hash=sha256:ab", "uv==0.1 --hash=sha256:bb"]
    assert re.fullmatch(r"a==1\nuv==[\d.]+", asked[0])


def test_without_an_index_there_are_no_hashes_and_the_lock_stays(monkeypatch, tmp_path):
    monkeypatch.setattr(lock.subprocess, "run", lambda *_, **__: (
        subprocess.CompletedProcess([], 2, "", "error: dns error")))
    monkeypatch.setattr(lock, "LOCK", tmp_path / "requirements.lock")
    monkeypatch.setattr(lock, "lock", lambda: "a==1\n")
    with pytest.raises(SystemExit, match=r"requirements\.hashes: uv got no hashes: .*dns error"):
        lock.main()
    assert not lock.LOCK.exists()


def test_the_packages_that_run_native_code_have_files_for_all_systems():
    """A wheel has a separate hash for each Python and system."""
    hashes = {line.partition("==")[0]: line.count("--hash=")
              for line in lock.HASHES.read_text("utf-8").splitlines()}
    assert min(hashes[name] for name in ("numpy", "torch", "tornado", "matplotlib")) > 8


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml"])
def test_a_changed_pin_installs_again(tree, name):
    tree.setup()
    before = len(tree.calls())
    with (tree.root / name).open("a") as file:
        file.write("# newer\n")
    assert tree.setup().returncode == 0
    assert len(tree.calls()) == 2 * before


def test_a_failed_run_is_tried_again(tree):
    tree.refusal(FAKE_PIP="exit 1")
    assert tree.setup().returncode == 0


def test_a_moved_folder_gets_a_new_environment(tree):
    tree.setup()
    (tree.root / ".venv/left-over").touch()
    tree.root = tree.root.rename(tree.root.with_name("elsewhere"))
    done = tree.setup()
    assert done.returncode == 0, done.stderr
    assert "making it anew" in done.stdout
    assert not (tree.root / ".venv/left-over").exists()


# ---- JupyterLab

def test_a_busy_port_names_one_that_is_free():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} is in use.*make lab PORT=\d+") as stop:
            lab.port_number(str(port))
        assert not lab.busy(int(str(stop.value).rpartition("=")[2]))
    assert lab.port_number(str(port)) == port


@pytest.mark.parametrize("text", ["0", "65536", "-1", "lab", ""])
def test_a_port_that_is_none_is_refused(text):
    with pytest.raises(UserError, match="expected 1 to 65535"):
        lab.port_number(text)


@pytest.mark.parametrize(("user", "allowed"), [(0, True), (1000, False)])
def test_jupyterlab_runs_as_root_and_opens_the_start_notebook(monkeypatch, user, allowed):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    line = lab.command(8888, ["--no-browser"], ROOT / "my-work/00_start_here.ipynb")
    assert ("--allow-root" in line) is allowed
    assert f"--ServerApp.root_dir={ROOT}" in line
    assert "--LabApp.default_url=/lab/tree/my-work/00_start_here.ipynb" in line
    assert line[-1] == "--no-browser"


def test_a_folder_of_work_elsewhere_is_the_root_of_jupyterlab(tmp_path):
    line = lab.command(8888, [], tmp_path / "00_start_here.ipynb")
    assert f"--ServerApp.root_dir={tmp_path}" in line
    assert "--LabApp.default_url=/lab/tree/00_start_here.ipynb" in line


def test_dlsys_lab_passes_the_options_after_two_dashes_on(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "MY_WORK", tmp_path / "my-work")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lab, "busy", lambda port: False)
    monkeypatch.setattr(os, "execv", lambda program, line: started.append(line))
    started: list[list[str]] = []
    for options in (["--", "--no-browser"], ["--"], []):
        cli.main(["lab", "--port", "8765", *options])
    assert [line[-1] for line in started[:1]] == ["--no-browser"]
    assert [("--port=8765" in line, line[-1].startswith("--LabApp")) for line in started[1:]] == [
        (True, True)] * 2
    assert (tmp_path / "my-work/00_start_here.ipynb").is_file()


def test_dlsys_lab_without_jupyterlab_says_how_to_get_it(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(paths, "MY_WORK", tmp_path)
    monkeypatch.setattr(lab.importlib.util, "find_spec", lambda name: None)
    assert cli.main(["lab"]) == cli.BAD_INPUT
    said = capsys.readouterr().err
    assert sys.executable in said
    assert " -m pip install jupyterlab (under uvx, add --with jupyterlab" in said
    assert said.count("\n") == 1


def test_nothing_of_ours_waits_for_parsers_of_addresses():
    """They cost two seconds at each start, and jsonschema does without them."""
    look = ("import sys, {first}; import nbformat; nbformat.validate(nbformat.v4.new_notebook()); "
            "print('lark' in sys.modules)")
    for first, loaded in (("dlsys", "False"), ("tools.suite", "False"), ("json", "True")):
        done = subprocess.run([sys.executable, "-c", look.format(first=first)], cwd=ROOT,
                              capture_output=True, text=True, check=True)
        assert done.stdout.split() == [loaded], first


# ---- floors and pins

def pins(lines: list[str]) -> dict[str, str]:
    """Name -> the specifier of each requirement, names in their canonical form."""
    found = [Requirement(line) for line in lines]
    return {canonicalize_name(one.name): str(one.specifier) for one in found}


def listed(path: Path) -> dict[str, str]:
    """Name -> version of a list of exact pins."""
    lines = [line for line in path.read_text("utf-8").splitlines() if line[:1] not in ("#", "")]
    found = pins(lines)
    assert {n: s for n, s in found.items() if not re.fullmatch(r"==[\w.]+", s)} == {}
    return {name: spec.removeprefix("==") for name, spec in found.items()}


def locked() -> dict[str, str]:
    return {name: f"=={version}" for name, version in listed(lock.LOCK).items()}


def conda() -> dict:
    return yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))


def test_the_metadata_has_floors_and_the_lock_exact_versions():
    assert {n: s for n, s in pins(ALL).items() if not s.startswith(("<", ">="))} == {}
    assert pins(EXTRAS["hub"]) == {"jupyterhub": "==6.1.1"}  # not in the lock
    assert len(listed(lock.LOCK)) > 250


@pytest.mark.parametrize("name", ["requirements.lock", "deploy/colab.txt"])
def test_the_floors_allow_the_versions_that_are_tried(name):
    """Today's lock and Colab's list; a first cell installs what Colab lacks."""
    found = listed(ROOT / name)
    asked = {canonicalize_name(one.name): one.specifier for one in map(Requirement, USED)}
    assert {"torch", "numpy", "matplotlib", "transformers"} <= found.keys() & asked.keys()
    assert [name for name, spec in asked.items()
            if name in found and not spec.contains(found[name])] == []
    assert name != "requirements.lock" or asked.keys() <= found.keys()


def test_a_floor_is_the_lowest_version_that_was_tried():
    """That is Colab's if Colab has the package and the lock is newer; to the minor version."""
    colab, today = listed(ROOT / "deploy/colab.txt"), listed(lock.LOCK)
    for name, spec in pins(USED).items():
        tried = min((found[name] for found in (colab, today) if name in found),
                    key=needed.numbers)
        floor = needed.numbers(spec.removeprefix(">="))
        assert floor[:1] == needed.numbers(tried)[:1], name
        assert floor <= needed.numbers(tried), name


@pytest.mark.nightly  # it asks the package index
@pytest.mark.parametrize(("python", "name", "extras"), [
    ("3.13", "deploy/colab.txt", "jax,language,compress,track"),
    ("3.11", "requirements.lock", "jax,lab,language,compress,track,room")])
def test_the_wheel_resolves_with_old_and_with_new_versions(tmp_path, python, name, extras):
    """Every package in the list keeps its version, and the missing ones are found."""
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
                    "-w", tmp_path, ROOT], check=True)
    [wheel] = tmp_path.glob("*.whl")
    done = subprocess.run(
        [Path(sys.executable).with_name("uv"), "pip", "compile", "-q", "--no-header",
         "--no-annotate", "--python-version", python, "-c", ROOT / name, "-"],
        input=f"dlsys-helpers[{extras}] @ file://{wheel}", text=True, capture_output=True,
        env={**os.environ, "UV_INDEX_STRATEGY": "unsafe-best-match"}, check=False)
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"^([\w.-]+)==([\w.]+)", done.stdout, re.M))
    given = listed(ROOT / name)
    assert {"torch", "numpy", "onnx", "optuna", "jax", "peft"} <= found.keys()
    assert {n: v for n, v in found.items() if n in given and given[n] != v} == {}


def test_no_learner_gets_pytest_and_jax_comes_with_the_stages_that_ask_for_it():
    assert not {"pytest", "nbval", "jax", "jupyterlab"} & pins(PROJECT["dependencies"]).keys()
    first = lock.LOCK.read_text(encoding="utf-8").split("# Besides")[0]
    assert "pytest" not in pins([line for line in first.splitlines() if line[0] != "#"])


def test_the_first_part_of_the_lock_is_what_the_lessons_need():
    first, rest = lock.LOCK.read_text(encoding="utf-8").split("# Besides")
    assert pins(USED).keys() <= pins(first.splitlines()[1:]).keys()
    later = pins(rest.splitlines()[1:])
    assert {"papermill", "playwright", "jupyter-book", "ruff", "hypothesis"} <= later.keys()
    assert not pins(USED).keys() & later.keys()


def test_what_the_lessons_import_is_in_the_first_part():
    """Look up the package that provides each imported module here."""
    found = set()
    for path in sorted((ROOT / "lessons").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found |= {a.name for a in node.names} if isinstance(node, ast.Import) else (
                {node.module} if isinstance(node, ast.ImportFrom) and not node.level else set())
    modules = {name.partition(".")[0] for name in found} - sys.stdlib_module_names - {
        "dlsys", "dlsys_helpers", "dlsys_checks", "dlsys_model"}
    brought_by = metadata.packages_distributions()
    packages = {canonicalize_name(brought_by[name][0]) for name in modules}
    first = lock.LOCK.read_text(encoding="utf-8").split("# Besides")[0]
    assert len(packages) > 8
    assert packages <= pins(first.splitlines()[1:]).keys()


def test_the_lock_is_the_complete_set_of_what_is_installed():
    assert lock.lock() == lock.LOCK.read_text(encoding="utf-8")


def test_the_lock_refuses_another_version_than_the_pin():
    where = lock.environment("Linux", "3.11")
    with pytest.raises(LookupError, match=r"pytest==0\.1: got \d"):
        lock.needed_by(Requirement("pytest==0.1"), where)


def test_the_lock_refuses_a_package_that_a_promised_python_cannot_install(monkeypatch):
    monkeypatch.setattr(lock, "PYTHONS", ("3.7",))
    with pytest.raises(LookupError, match=r"torch 2.*needs Python >=3.*for all of 3\.7"):
        lock.installed.__wrapped__("torch")


def test_only_platforms_with_cuda_wheels_get_them():
    lines = lock.LOCK.read_text(encoding="utf-8").splitlines()
    cuda = [line for line in lines if re.match("nvidia-|cuda-|triton", line)]
    assert cuda
    assert all(line.endswith('; platform_system == "Linux"') for line in cuda)


def test_conda_gets_what_lessons_need_with_torch_for_cpus():
    *specs, rest = conda()["dependencies"]
    floors = pins(PROJECT["dependencies"])
    assert {f"pytorch-cpu{floors['torch']}", f"torchvision{floors['torchvision']}"} <= {*specs}
    [course] = rest["pip"]
    assert set(re.fullmatch(r"-e \.\[(.*)\]", course)[1].split(",")) == lock.LESSONS


def test_conda_specs_are_valid_and_its_python_is_allowed():
    specs = [spec for spec in conda()["dependencies"] if isinstance(spec, str)]
    assert [spec for spec in specs if not MATCH_SPEC.fullmatch(spec)] == []
    python = next(spec for spec in specs if spec.startswith("python=")).removeprefix("python=")
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(f"{python}.0")


# ---- make and CI

@pytest.mark.parametrize(("target", "runs"), [
    ("lab", "dlsys lab --port 8888 --"), ("hub", "deploy.hub.local"),
    ("test", "pytest -p tools.suite -p tools.nightly -n 3"),
    ("build", "tools.build 01"), ("new", 'tools.new "05.2" rescale'),
    ("book", "tools.book"), ("book-serve", "tools.book --serve"),
    ("bench", "benchmarks"), ("sweep", "tools.sweep"), ("wheel", "pip wheel")])
def test_each_target_sets_up_first_and_then_runs_its_command(target, runs):
    done = subprocess.run(["make", "--dry-run", "--always-make", target, "LESSON=01",
                           "TRAP=05.2", "NAME=rescale"], cwd=ROOT,
                          text=True, capture_output=True, timeout=20, check=True)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("make")]
    learner = target in {"lab", "hub", "wheel"}
    assert lines[0] == "sh tools/setup.sh" + (" lab" if learner else "")
    assert f".venv/bin/python -m {runs}" in " ".join(lines[1:])


@pytest.mark.parametrize("has_environment", [True, False])
def test_recording_sets_nothing_up(tmp_path, has_environment):
    """A GPU machine has its own torch, and often no network and no room for a second one."""
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text("utf-8"))
    if has_environment:
        (tmp_path / ".venv/bin").mkdir(parents=True)
        (tmp_path / ".venv/bin/python").touch()
    done = subprocess.run(["make", "--no-print-directory", "--dry-run", "record",
                           "PYTHON=python3.12"], cwd=tmp_path,
                          text=True, capture_output=True, timeout=20, check=True)
    python = ".venv/bin/python" if has_environment else "python3.12"
    assert done.stdout.splitlines() == [f"PYTHONPATH=src {python} -m tools.record"]


def ci(folder: Path, **programs: str) -> list[str]:
    """The lines that .ci/run prints where only these programs and the basic ones exist."""
    for name in ("bash", "dirname"):
        (folder / name).symlink_to(shutil.which(name))
    for name, text in {"make": "echo '= 3 passed in 1s ='", **programs}.items():
        (folder / name).write_text(f"#!{shutil.which('bash')}\n{text}\n")
        (folder / name).chmod(0o755)
    done = subprocess.run(["bash", ROOT / ".ci/run"], text=True, capture_output=True, timeout=20,
                          env={"PATH": str(folder), "TMPDIR": str(folder)}, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(("programs", "said"), [
    ({"chromium": "", "id": "echo 0"}, "Chromium is here"),
    ({"id": "echo 0", "apt-get": "echo noise"}, "Chromium installed"),
    ({"id": "echo 0", "apt-get": "exit 100"}, "apt-get failed"),
    ({"id": "echo 1000", "apt-get": ""}, "browser tests are skipped"),
    ({"id": "echo 0"}, "browser tests are skipped")])
def test_ci_says_whether_there_is_a_browser_and_ends_with_the_summary(tmp_path, programs, said):
    first, last = ci(tmp_path, **programs)
    assert said in first
    assert last == "= 3 passed in 1s ="


# ---- README

TWO = (Stage(1, "one", "First", "It starts."), Stage(2, "two", "Second", "It goes on."))


def test_lesson_table_links_what_is_written_and_says_what_is_not():
    traps = [replace(catalog.trap("01.1"), minutes=minutes) for minutes in (10, 15)]
    table = readme.lesson_table(TWO, {1: traps})
    assert table.splitlines()[2:] == [
        "| 1 | [First](notebooks/01_one.ipynb) | It starts. | 2, with 25 min of exercises |",
        "| 2 | Second | It goes on. | not written yet |"]


def test_only_what_lies_between_the_markers_is_replaced():
    text = "a\n<!-- lessons -->\nold\n<!-- /lessons -->\nb\n"
    assert readme.filled(text, "lessons", r"\new" + "\n") == text.replace("old", r"\new")
    with pytest.raises(ValueError, match="got 0 places"):
        readme.filled("no markers", "lessons", "table")


def test_readme_holds_the_numbers_the_way_in_and_the_table_of_today():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == readme.current(text), "Run: make build"
    assert text.count("\n") <= 100


def test_the_promise_rounds_down_what_changes_often():
    traps = [catalog.trap("01.1"), catalog.trap("01.2")]
    assert readme.promise(traps, 1, 1399).startswith("**2 traps in 1 stages")
    assert readme.promise(traps, 1, 1250) == readme.promise(traps, 1, 1499)
    assert "over 1,250 claims" in readme.promise(traps, 1, 1399)


def test_with_a_public_home_readme_links_the_pages_and_has_one_line_to_paste():
    said = readme.way_in("https://github.com/a/b", "https://a.github.io/b/")
    assert "[Read it on the web](https://a.github.io/b/)" in said
    assert "\ngit clone https://github.com/a/b && cd b && make lab\n" in said
    assert "open lesson 1 on [Colab](https://colab." in said
    assert "vscode:" not in said  # GitHub shows no such link
    assert "make lab" in readme.way_in("", "")
    assert '\nuvx --from "dlsys-helpers[lab]" dlsys lab ' in readme.way_in("", "", on_index=True)


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 100


def test_the_moving_picture_shows_the_home_page_of_today():
    path = moving_picture.TARGET
    assert moving_picture.comment_of(path) == moving_picture.fingerprint(), (
        "Run: make book, then make picture")
    assert f"]({path.relative_to(ROOT)})" in (ROOT / "README.md").read_text("utf-8")
    assert path.stat().st_size < 400_000
    with Image.open(path) as image:
        assert (image.n_frames, image.info["loop"]) == (6, 0)


def test_readme_links_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = [t for t in re.findall(r"\]\(([^)]+)\)", text) if "://" not in t]
    anchors = {"#" + re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
               for title in re.findall(r"^#+ (.+)$", text, re.M)}
    assert {target for target in targets if target.startswith("#")} <= anchors
    assert [target for target in targets
            if not target.startswith("#") and not (ROOT / target).exists()] == []


@pytest.mark.parametrize("name", OWN_FILES)
def test_no_file_names_a_machine_or_an_index(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    names = r"/root\b|/home/|/work\b|/Users/|pypi\.|pythonhosted|index-url\W+\w+:"
    assert re.findall(names, text) == []
