"""A fork server for kernels, as multiprocessing's: it has torch imported, and forks on request.

python -m dlsys_warm.server SOCKET LISTENER-FD LOCK-FD, as server_address.py starts it.

One connection is one kernel. The client sends an order as a line of JSON and gets the process id,
then the exit code. When the connection closes, the kernel is killed, so none outlives its client.
The server is single-threaded and runs no operation of torch, which would start threads: a child
of a fork has only the thread that forked.
"""

import contextlib
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import time
from typing import NamedTuple


class Order(NamedTuple):
    """A request for one process: module, arguments, environment, and its stdout and stderr."""

    module: str
    arguments: list[str]
    env: dict[str, str]
    cwd: str
    outputs: list[int]


def preload(modules: list[str]) -> str:
    """Import these modules. Returns why forking is unsafe now, or "" if it is safe."""
    for name in filter(None, modules):
        try:
            importlib.import_module(name)
        except Exception as error:  # an import may raise anything; the kernel does without
            return f"{name} cannot be imported ({error})"
    gc.collect()
    gc.freeze()  # a collection in a kernel would write to shared pages, and so copy them
    return objection()


def objection() -> str:
    """Why forking is unsafe: CUDA is initialized, or a thread runs that a child would lack.

    Libraries with fork handlers, such as OpenBLAS, stop their threads before a fork and restart
    them later. So threads are counted after a trial fork: those that remain have no handler.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is in use where kernels are forked"
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    threads = len(os.listdir("/proc/self/task"))
    return f"imports started {threads - 1} threads, which no fork takes over" * (threads > 1)


def fork_session() -> int:
    """os.fork with setsid in the child, as an ordinary kernel has. Returns what os.fork returns.

    Linux's autogroup scheduling shares the processor by session: forty kernels in one session
    would get the share of one. The parent waits for setsid, so that killpg finds the new group.
    """
    hear, say_done = os.pipe()
    if pid := os.fork():
        os.close(say_done)
        os.read(hear, 1)
    else:
        os.setsid()
        os.close(say_done)
    os.close(hear)
    return pid


class Server:
    """The event loop: accepts orders, reports exit codes, ends when idle for `idle` seconds."""

    def __init__(self, listener: socket.socket, refusal: str, idle: float) -> None:
        self.listener, self.refusal, self.idle = listener, refusal, idle
        self.kernels: dict[int, socket.socket] = {}
        self.reported: set[int] = set()  # ended, with the exit code sent
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ, self.accept)
        self.alarm, write = socket.socketpair()
        self.alarm.setblocking(False)
        write.setblocking(False)
        self.selector.register(self.alarm, selectors.EVENT_READ, self.tell)
        self.write = write
        signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        # An empty handler: without one, Python writes no signal number to the wake-up descriptor.
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> Order | None:
        """Serve until idle, then return None. In a forked child, return the order to run."""
        while events := self.selector.select(None if self.kernels else self.idle):
            for key, _ in events:
                if key.fileobj.fileno() >= 0 and (order := key.data()):
                    return order
        return None

    def accept(self) -> Order | None:
        connection, _ = self.listener.accept()
        connection.settimeout(5)
        try:
            order = receive(connection)
        except (OSError, ValueError, TypeError) as error:
            print(f"an order that cannot be read: {error!r}", flush=True)
            connection.close()
            return None
        if self.refusal:
            say(connection, refused=self.refusal)
            connection.close()
        elif (pid := fork_session()) == 0:
            connection.close()
            self.close()
            return order
        else:
            self.watch(pid, connection)
        close_all(order.outputs)
        return None

    def watch(self, pid: int, connection: socket.socket) -> None:
        self.kernels[pid] = connection
        self.selector.register(connection, selectors.EVENT_READ, lambda: self.drop(pid))
        say(connection, pid=pid)

    def drop(self, pid: int) -> None:
        """The client closed its connection: kill the kernel's process group and reap it."""
        connection = self.kernels.pop(pid)
        self.reported.discard(pid)
        self.selector.unregister(connection)
        connection.close()
        with contextlib.suppress(ProcessLookupError):  # killed before it had a group
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def tell(self) -> None:
        """Send exit codes. WNOWAIT keeps a zombie until `drop`, so its pid is not reused."""
        self.alarm.recv(4096)
        for pid, connection in self.kernels.items():
            ended = pid not in self.reported and os.waitid(
                os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended:
                by_itself = ended.si_code == os.CLD_EXITED
                self.reported.add(pid)
                say(connection, code=ended.si_status if by_itself else -ended.si_status)

    def close(self) -> None:
        """In a forked child: close the server's descriptors, restore the default signals."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.selector.close()
        for connection in (self.listener, self.alarm, self.write, *self.kernels.values()):
            connection.close()


def receive(connection: socket.socket) -> Order:
    """Read the order from a connection. Raises OSError, ValueError or TypeError if malformed."""
    _, outputs, _, _ = socket.recv_fds(connection, 1, 2)
    try:
        text = b""
        while not text.endswith(b"\n"):
            if not (part := connection.recv(65536)):
                raise ValueError("it ended early")
            text += part
        return Order(**json.loads(text), outputs=outputs)
    except BaseException:
        close_all(outputs)
        raise


def close_all(numbers: list[int]) -> None:
    for number in numbers:
        os.close(number)


def say(connection: socket.socket, **facts: object) -> None:
    with contextlib.suppress(OSError):  # a closed connection is the selector's next event
        connection.sendall(json.dumps(facts).encode() + b"\n")


def reseed() -> None:
    """Reseed Python, numpy and torch: forked siblings would all draw the same numbers."""
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()


def become(order: Order) -> None:
    """Run the order in this forked process, as if `python -m` had started it."""
    for own, number in zip((1, 2), order.outputs, strict=True):
        os.dup2(number, own)
        os.close(number)
    os.environ.clear()
    # ipykernel exits when its parent does, and the parent is this server.
    os.environ.update(order.env, JPY_PARENT_PID=str(os.getppid()))
    os.chdir(order.cwd)
    time.tzset()
    tempfile.tempdir = None
    reseed()
    arguments = order.arguments
    if order.module == "ipykernel_launcher":  # it read JPY_PARENT_PID when the server imported it
        arguments = [*arguments, f"--IPKernelApp.parent_handle={os.getppid()}"]
    sys.argv = [order.module, *arguments]
    runpy.run_module(order.module, run_name="__main__", alter_sys=True)


def main() -> None:
    if os.fork():
        os._exit(0)  # the parent exits: the server runs in the background
    if sys.path[0] == os.getcwd():
        del sys.path[0]
    path, listener, lock = sys.argv[1], socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3])
    refusal = preload(os.environ["DLSYS_WARM_PRELOAD"].split(","))
    order = Server(listener, refusal, float(os.environ["DLSYS_WARM_IDLE"])).serve()
    if order is None:
        os.unlink(path)
    else:
        os.close(lock)
        become(order)


if __name__ == "__main__":
    main()
