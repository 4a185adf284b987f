"""Warm kernels are forked if possible and started if not, and none outlives its parents.

Here the server imports only what a test names, and a light task replaces a kernel.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import pytest
from jupyter_client import KernelManager
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

from dlsys_helpers.paths import ROOT
from dlsys_warm import provisioner, server, server_address

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="warm kernels exist on Linux")

TASK = """
import os, random, subprocess, sys, time
out = open(sys.argv[1], "w")
child = subprocess.Popen(["sleep", "60"]).pid if "child" in sys.argv else 0
print(os.getppid(), os.getpid(), child, os.getcwd(), os.environ.get("WHO"), random.random(),
      file=out, flush=True)
print("said aloud", flush=True)
if sys.argv[-1].isdecimal():
    sys.exit(int(sys.argv[-1]))
time.sleep(60)
"""


class Desk:
    """A separate folder for sockets, and what tasks wrote there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.env = folder, {
            "PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT / 'src'}:{folder}",
            "DLSYS_WARM_PRELOAD": "", "DLSYS_WARM_IDLE": "20"}
        (folder / "task.py").write_text(TASK)
        self.running = []

    def fork(self, name="a", *arguments, **changes):
        out = self.folder / name
        done = provisioner.fork("task", [str(out), *arguments], {**self.env, **changes}, "/")
        self.running.append(done)
        return done

    def facts(self, name="a"):
        """Pids of parent, task and child, folder, WHO and a random number, as the task wrote."""
        return until(lambda: self.written(name)).split()

    def written(self, name):
        with contextlib.suppress(FileNotFoundError):
            text = (self.folder / name).read_text()
            return text if text.endswith("\n") else ""

    def close(self):
        servers = {text.split()[0] for path in self.folder.glob("?")
                   if (text := self.written(path.name))}
        for task in self.running:
            task.connection.close()
        for number in servers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(number), signal.SIGTERM)


def until(found, seconds=20):
    """What found() says once it is true. Raises AssertionError if it never is."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
    return value


def gone(number) -> bool:
    """Whether no such process runs; a zombie counts as ended."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def desk(monkeypatch):
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # a socket's path has at most 107 characters
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    made = Desk(folder)
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)  # a dying task may still write


def test_a_process_gets_its_own_folder_environment_and_numbers(desk):
    for name in "ab":
        assert desk.fork(name, "3", WHO=name).wait() == 3
    (a, b) = map(desk.facts, "ab")
    assert (a[0], a[3:5], b[3:5]) == (b[0], ["/", "a"], ["/", "b"])
    assert a[5] != b[5]


def test_output_goes_where_the_client_says(desk):
    with open(desk.folder / "said", "w") as said:
        provisioner.fork("task", [str(desk.folder / "a"), "0"], desk.env, "/",
                         stdout=said.fileno()).wait()
    assert (desk.folder / "said").read_text() == "said aloud\n"


def test_exit_codes_are_those_of_popen(desk):
    killed = desk.fork()
    assert killed.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        killed.wait(timeout=0.01)
    killed.terminate()
    assert (killed.wait(), killed.poll()) == (-15, -15)
    killed.kill()  # after the end, another process may have its pid
    assert desk.fork("b", "7").wait() == 7


def test_sixteen_at_once_share_one_server(desk):
    with ThreadPoolExecutor(16) as pool:
        tasks = list(pool.map(lambda n: desk.fork(f"{n:x}"), range(16)))
    facts = [desk.facts(f"{n:x}") for n in range(16)]
    assert len({row[0] for row in facts}) == 1
    assert [int(row[1]) for row in facts] == [task.pid for task in tasks]
    assert all(os.getsid(task.pid) == task.pid for task in tasks)


def test_whoever_dies_takes_the_processes_along(desk):
    code = ("import sys, time, tempfile; from dlsys_warm import provisioner\n"
            f"tempfile.tempdir = {str(desk.folder)!r}\n"
            f"task = provisioner.fork('task', [{str(desk.folder / 'a')!r}, 'child'],"
            f" {desk.env!r}, '/')\ntime.sleep(60)")
    client = subprocess.Popen([sys.executable, "-c", code],
                              env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    parent, number, child = desk.facts()[:3]
    client.kill()
    client.wait()
    until(lambda: gone(number) and gone(child))
    assert not gone(parent)
    assert desk.fork("b").poll() is None


def test_where_the_server_dies_its_processes_end_and_another_comes(desk):
    task = desk.fork()
    first, number = desk.facts()[:2]
    os.kill(int(first), signal.SIGKILL)
    assert task.wait() == -9
    until(lambda: gone(number))
    desk.fork("b")
    assert desk.facts("b")[0] != first


def test_what_is_read_at_the_start_only_parts_the_servers(desk):
    for name, changes in ("a", {}), ("b", {"WHO": "me"}), ("c", {"OMP_NUM_THREADS": "3"}):
        desk.fork(name, "0", **changes).wait()
    a, b, c = (desk.facts(name)[0] for name in "abc")
    assert a == b != c


def test_a_server_knows_no_secret_of_its_first_client(desk):
    desk.fork("a", WHO="secret", JUPYTERHUB_API_TOKEN="secret")
    parent = desk.facts()[0]
    assert b"secret" not in Path(f"/proc/{parent}/environ").read_bytes()


def test_a_server_without_work_ends_and_clears_its_socket_away(desk):
    desk.env["DLSYS_WARM_IDLE"] = "0.1"
    desk.fork("a", "0").wait()
    until(lambda: gone(desk.facts()[0]))
    assert not list(server_address.folder().glob("*.socket"))


@pytest.mark.parametrize(("preload", "why"), [
    ("no_such_module", "no_such_module cannot be imported"),
    ("threaded", "imports started 1 threads"),
])
def test_what_cannot_be_forked_is_refused_with_the_reason(desk, preload, why):
    (desk.folder / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True)"
        ".start()\n")
    desk.env |= {"DLSYS_WARM_PRELOAD": preload, "DLSYS_WARM_IDLE": "0.1"}
    with pytest.raises(provisioner.Refused, match=why):
        desk.fork()


def test_a_device_in_use_is_refused(monkeypatch):
    cuda = type("cuda", (), {"is_initialized": staticmethod(lambda: True)})
    monkeypatch.setitem(sys.modules, "torch", type("torch", (), {"cuda": cuda}))
    assert "CUDA" in server.objection()


def test_a_broken_order_leaves_the_server_at_work(desk):
    desk.fork("a", "0").wait()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(next(server_address.folder().glob("*.socket"))))
        socket.send_fds(connection, [b"."], [1, 2])
        connection.sendall(b"{\n")
        assert connection.recv(1) == b""
    desk.fork("b", "0").wait()
    assert desk.facts("a")[0] == desk.facts("b")[0]


def test_a_folder_that_others_may_write_to_is_not_used(desk):
    (desk.folder / f"dlsys-warm-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="Remove it"):
        desk.fork()


# ---- the provisioner

@pytest.mark.parametrize(("command", "kwargs", "why"), [
    (["R", "--slave"], {}, "its command is R"),
    ([sys.executable, "-m", "other"], {}, "a python kernel"),
    ([sys.executable, "-m", "ipykernel_launcher"], {"independent": True}, "ends with this"),
    ([sys.executable, "-m", "ipykernel_launcher"], {"stderr": subprocess.PIPE}, "a pipe"),
])
def test_other_kernels_start_the_ordinary_way_with_one_line(monkeypatch, caplog, command, kwargs,
                                                            why):
    check_ordinary(monkeypatch, caplog, command, kwargs, why)


def test_other_systems_start_the_ordinary_way_with_one_line(monkeypatch, caplog):
    monkeypatch.setattr(provisioner.sys, "platform", "darwin")
    check_ordinary(monkeypatch, caplog, [sys.executable, "-m", "ipykernel_launcher"], {},
                   "on darwin, expected linux")


def check_ordinary(monkeypatch, caplog, command, kwargs, why):
    started = []

    async def ordinary(self, cmd, **_):
        started.append(cmd)
        return {}

    monkeypatch.setattr(LocalProvisioner, "launch_kernel", ordinary)
    asked = provisioner.WarmProvisioner(kernel_id="", kernel_spec=None, parent=None)
    with caplog.at_level("WARNING"):
        asyncio.run(asked.launch_kernel(command, env={}, **kwargs))
    assert started == [command]
    (line,) = caplog.messages
    assert why in line


def test_a_real_kernel_is_interrupted_restarted_and_seen_to_die(desk, monkeypatch):
    """With jupyter_client's own switch, for a notebook that asks for python3."""
    for name, value in {**desk.env, "JUPYTER_DEFAULT_PROVISIONER_NAME": "dlsys-warm",
                        "DLSYS_WARM_PRELOAD": "ipykernel.ipkernel,ipykernel.kernelapp"}.items():
        monkeypatch.setenv(name, value)
    KernelProvisionerFactory.clear_instance()
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(extra_arguments=["--IPKernelApp.log_level=ERROR"])
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=30)
        first = printed_words(client, "import os; print(os.getpid(), os.getppid())")
        assert int(first[0]) == manager.provisioner.pid != os.getpid()
        assert isinstance(manager.provisioner.process, provisioner.WarmProcess)
        client.execute("import time; print('on', flush=True); time.sleep(60)")
        until(lambda: client.get_iopub_msg(timeout=10)["msg_type"] == "stream")
        manager.interrupt_kernel()
        assert client.get_shell_msg(timeout=10)["content"]["ename"] == "KeyboardInterrupt"
        manager.restart_kernel(now=True)
        client.wait_for_ready(timeout=30)
        second = printed_words(client, "import os; print(os.getpid(), os.getppid())")
        assert second[1] == first[1]
        assert second[0] != first[0]
        os.kill(int(second[0]), signal.SIGKILL)
        until(lambda: not manager.is_alive())
        os.kill(int(first[1]), signal.SIGTERM)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        KernelProvisionerFactory.clear_instance()


def printed_words(client, code) -> list[str]:
    """The words that code prints."""
    found = []

    def keep(message):
        found.extend(message["content"].get("text", "").split())

    client.execute_interactive(code, timeout=20, output_hook=keep)
    return found


def test_the_switch_names_the_provisioner():
    named = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    (name, target), = named[KernelProvisionerFactory.GROUP_NAME].items()
    assert metadata.EntryPoint(name, target, "").load() is provisioner.WarmProvisioner
    assert f"JUPYTER_DEFAULT_PROVISIONER_NAME = {name}\n" in (ROOT / "Makefile").read_text("utf-8")


def test_what_is_preloaded_leaves_triton_to_the_kernel():
    """Triton reads TRITON_INTERPRET once, when it is imported; lesson 8 sets it first."""
    script = (f"import importlib, sys\nfor name in {server_address.PRELOAD!r}.split(','):\n"
              "    importlib.import_module(name)\nprint('triton' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          check=True, timeout=120)
    assert done.stdout == "False\n"
