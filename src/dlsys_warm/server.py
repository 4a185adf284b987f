"""The process that has everything imported, and forks a kernel for each connection.

python -m dlsys_warm.server SOCKET NUMBER-OF-ITS-LISTENER NUMBER-OF-ITS-LOCK, as place.py starts it.

A connection is one kernel: it brings the order, is told the process's number and, once that has
ended, its exit code. It ends as the connection does, so none outlives whoever asked for it.
One thread does all this, since a fork takes over no other; and nothing here runs an operation of
torch, which would start some.
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
    """What a process is to run, and the files that it writes to."""

    module: str
    arguments: list[str]
    env: dict[str, str]
    cwd: str
    outputs: list[int]


def preload(modules: list[str]) -> str:
    """Import them; why nothing can be forked afterwards, or an empty text."""
    for name in filter(None, modules):
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever an import may raise: the kernel starts without
            return f"{name} cannot be imported ({error})"
    gc.collect()
    gc.freeze()  # else a collection in a kernel writes to, and so copies, what all could share
    return objection()


def objection() -> str:
    """What speaks against a fork: a device in use, or threads that do not stop for one.

    A library that expects forks, as OpenBLAS does, ends its threads before one, and starts others
    later; so a fork for nothing tells those threads from the ones that a kernel would miss.
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
    """Fork into a session of its own, which an ordinary kernel has, too; returns as os.fork.

    A scheduler may share the processor among sessions: forty kernels in one would get the part of
    one. The session is there before anybody hears the number and signals its group.
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
    """Accepts orders and watches over the processes until there are none for a while."""

    def __init__(self, listener: socket.socket, refusal: str, idle: float) -> None:
        self.listener, self.refusal, self.idle = listener, refusal, idle
        self.kernels: dict[int, socket.socket] = {}
        self.told: set[int] = set()  # ended, and their clients know
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ, self.accept)
        self.alarm, write = socket.socketpair()
        self.alarm.setblocking(False)
        write.setblocking(False)
        self.selector.register(self.alarm, selectors.EVENT_READ, self.tell)
        self.write = write
        signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # ends a wait, by the wake-up above

    def serve(self) -> Order | None:
        """Serve until idle, then None. In a forked process: what that one is to run."""
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
        """The client went away, or has heard the exit code: end the group, free the number."""
        connection = self.kernels.pop(pid)
        self.told.discard(pid)
        self.selector.unregister(connection)
        connection.close()
        with contextlib.suppress(ProcessLookupError):  # it was killed before it had a group
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def tell(self) -> None:
        """Tell the clients of processes that ended; those stay zombies until they have heard."""
        self.alarm.recv(4096)
        for pid, connection in self.kernels.items():
            ended = pid not in self.told and os.waitid(
                os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended:
                by_itself = ended.si_code == os.CLD_EXITED
                self.told.add(pid)
                say(connection, code=ended.si_status if by_itself else -ended.si_status)

    def close(self) -> None:
        """In a forked process: leave the server's files and signals to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.selector.close()
        for connection in (self.listener, self.alarm, self.write, *self.kernels.values()):
            connection.close()


def receive(connection: socket.socket) -> Order:
    """The order of a connection. Raises OSError, ValueError or TypeError where it is none."""
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
    with contextlib.suppress(OSError):  # it went away: that is seen as the next event
        connection.sendall(json.dumps(facts).encode() + b"\n")


def reseed() -> None:
    """A process draws numbers of its own, not those of all that were forked beside it."""
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
    # ipykernel ends where its parent does, and that is the server.
    os.environ.update(order.env, JPY_PARENT_PID=str(os.getppid()))
    os.chdir(order.cwd)
    time.tzset()
    tempfile.tempdir = None
    reseed()
    arguments = order.arguments
    if order.module == "ipykernel_launcher":  # it read JPY_PARENT_PID at import, in the server
        arguments = [*arguments, f"--IPKernelApp.parent_handle={os.getppid()}"]
    sys.argv = [order.module, *arguments]
    runpy.run_module(order.module, run_name="__main__", alter_sys=True)


def main() -> None:
    if os.fork():
        os._exit(0)  # into the background
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
