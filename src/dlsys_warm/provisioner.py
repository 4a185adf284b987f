"""A kernel provisioner of jupyter_client: forks from the warm server, or starts a process."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning import LocalProvisioner

LAUNCHER = ["-m", "ipykernel_launcher"]
PATIENCE = 120  # seconds until a server has imported everything, on a busy machine


class Refused(Exception):
    """Why a kernel cannot be forked, as shown in the log line."""


class WarmProcess:
    """A forked process behind the part of Popen's interface that LocalProvisioner uses.

    The server kills it when the connection closes, so dropping this object ends the process.
    """

    stdin = stdout = stderr = None

    def __init__(self, connection: socket.socket, pid: int, heard: bytes = b"") -> None:
        self.connection, self.pid, self.heard = connection, pid, heard
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, as Popen has it, or None while the process runs."""
        if self.returncode is None:
            self.connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                self._hear()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once there is one. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self.connection.settimeout(timeout)
            try:
                self._hear()
            except TimeoutError:
                raise subprocess.TimeoutExpired("warm kernel", timeout or 0) from None
        return self.returncode or 0

    def send_signal(self, signum: int) -> None:
        # The server keeps a zombie until the exit code has been read, so the pid is not reused.
        if self.poll() is None:
            os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _hear(self) -> None:
        """Read the exit code from the server; if the server died without one, kill the process."""
        try:
            said = self.heard or self.connection.recv(200)
        except ConnectionError:
            said = b""
        if not said:
            # It would exit by itself within a second, but hold its ports until then.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.returncode = json.loads(said)["code"] if said else -signal.SIGKILL
        self.connection.close()


def fork(module: str, arguments: Sequence[str], env: Mapping[str, str], cwd: str, *,
         options: Sequence[str] = (), stdout: int = 1, stderr: int = 2) -> WarmProcess:
    """`python -m module arguments`, forked from the warm server of this environment.

    Raises Refused if the server cannot fork, and OSError if it cannot be reached.
    """
    from dlsys_warm import server_address  # imported here: fcntl and resource exist on Unix only
    path = server_address.folder() / f"{server_address.name_of(options, env)}.socket"
    order = {"module": module, "arguments": list(arguments), "env": dict(env), "cwd": cwd}
    connection = connect(path, options, env)
    try:
        socket.send_fds(connection, [b"."], [stdout, stderr])
        connection.sendall(json.dumps(order).encode() + b"\n")
        said, _, heard = connection.recv(2000).partition(b"\n")
        answer = json.loads(said or json.dumps({"refused": f"its server died: {path.stem}.log"}))
        if "refused" in answer:
            raise Refused(answer["refused"])
    except BaseException:
        connection.close()
        raise
    return WarmProcess(connection, answer["pid"], heard)


def connect(path: Path, options: Sequence[str], env: Mapping[str, str]) -> socket.socket:
    """Connect to the server at path; start it if there is none."""
    from dlsys_warm import server_address
    end = time.monotonic() + PATIENCE
    while True:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(PATIENCE)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            if time.monotonic() > end:
                raise
            server_address.start(path, options, env)
            time.sleep(0.02)
        else:
            return connection


def descriptor(stream: Any, own: int) -> int:
    """The file descriptor for a stream argument of Popen: a number, a file's, or `own` for None.

    Raises Refused for a pipe, which would need a reader in this process.
    """
    if stream is None:
        return own
    number = stream if isinstance(stream, int) else stream.fileno()
    if number < 0:
        raise Refused("it was asked for with a pipe, expected a file")
    return number


class WarmProvisioner(LocalProvisioner):
    """Forks Python kernels of this environment; starts any other kernel the ordinary way."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        try:
            self.process = await asyncio.to_thread(self._forked, cmd, kwargs)
        except (Refused, OSError) as error:
            self.log.warning("warm kernels: not this one, %s; started the ordinary way.", error)
            return await super().launch_kernel(cmd, **kwargs)
        self.pid = self.pgid = self.process.pid
        self.cwd = kwargs.get("cwd") or os.getcwd()
        return self.connection_info

    def _forked(self, cmd: list[str], kwargs: Mapping[str, Any]) -> WarmProcess:
        if sys.platform != "linux":
            raise Refused(f"on {sys.platform}, expected linux")
        if cmd[0] != sys.executable or "-m" not in cmd:
            raise Refused(f"its command is {cmd[0]}, expected {sys.executable!r} -m")
        at = cmd.index("-m")
        if cmd[at:at + 2] != LAUNCHER or kwargs.get("independent"):
            raise Refused("expected a python kernel that ends with this process")
        return fork(cmd[at + 1], cmd[at + 2:], kwargs["env"], str(kwargs.get("cwd") or os.getcwd()),
                    options=cmd[1:at], stdout=descriptor(kwargs.get("stdout"), 1),
                    stderr=descriptor(kwargs.get("stderr"), 2))
