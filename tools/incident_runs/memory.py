"""A server forgets the cache of a request that its client cancels."""

import gc
import random

import torch

WIDTH, LAYERS = 32, 2
OLD_WIDTH = 24  # the width of last month's model
HOURS, REQUESTS = 24, 60
CANCELLED = (5, 5, 5, 5, 5, 5, 8, 10, 10, 10, 10, 10, 30, 30, 30, 10, 10, 10, 10, 10, 10, 5, 5, 5)
AT_ONCE = 8


class Request:
    """Tokens to read and to write. patience: tokens until its client leaves, or None."""

    def __init__(self, number: int, prompt: int, answer: int, patience: int | None) -> None:
        self.number, self.prompt, self.answer, self.patience = number, prompt, answer, patience
        self.written = 0


class Server:
    """A server that writes one token a step for every running request, with a key-value cache."""

    def __init__(self, mended: bool = False, at_once: int = AT_ONCE, width: int = WIDTH) -> None:
        self.mended, self.at_once, self.width = mended, at_once, width
        self.running: list[Request] = []
        self.cache: dict[int, torch.Tensor] = {}
        self.cancelled: set[int] = set()
        self.done = 0

    def start(self, request: Request) -> None:
        self.cache[request.number] = torch.zeros(LAYERS, 2, request.prompt, self.width)
        self.running.append(request)

    def step(self) -> None:
        for request in list(self.running):
            old = self.cache[request.number]
            token = torch.zeros(LAYERS, 2, 1, self.width)
            self.cache[request.number] = torch.cat([old, token], dim=2)
            request.written += 1
            if request.written == request.patience:
                self.cancel(request)
            elif request.written == request.answer:
                self.finish(request)

    def finish(self, request: Request) -> None:
        self.running.remove(request)
        del self.cache[request.number]
        self.done += 1

    def cancel(self, request: Request) -> None:
        """Drop a request whose client has left."""
        self.running.remove(request)
        self.cancelled.add(request.number)
        if self.mended:
            del self.cache[request.number]

    def serve(self, requests: list[Request]) -> None:
        waiting = list(requests)
        while waiting or self.running:
            while waiting and len(self.running) < self.at_once:
                self.start(waiting.pop(0))
            self.step()

    def held(self) -> float:
        """The size of the cache in kilobytes."""
        return sum(t.nbytes for t in self.cache.values()) / 1000


def traffic(seed: int, hour: int, cancelled: float | None = None, shorter: int = 1
            ) -> list[Request]:
    """The requests that arrive in an hour."""
    draw = random.Random(f"{seed} {hour}")
    share = (CANCELLED[hour] if cancelled is None else cancelled) / 100
    found = []
    for number in range(REQUESTS):
        prompt, answer = draw.randint(20, 120) // shorter, draw.randint(5, 30)
        leaves = draw.random() < share
        found.append(Request(1000 * hour + number, prompt, answer,
                             draw.randint(1, answer - 1) if leaves else None))
    return found


def day(seed: int, server: Server, hours: range = range(HOURS), **options) -> list[float]:
    """The cache's size at the end of each hour, when nothing runs."""
    held = []
    for hour in hours:
        server.serve(traffic(seed, hour, **options))
        held.append(server.held())
    return held


def measure(seed: int) -> dict:
    server = Server()
    held = day(seed, server)
    gone = [sum(request.patience is not None for request in traffic(seed, hour))
            for hour in range(HOURS)]
    long = [sum(request.prompt for request in traffic(seed, hour)) for hour in range(HOURS)]
    grown = [now - before for before, now in zip([0.0, *held], held, strict=False)]
    before = server.held()
    gc.collect()
    collected = before - server.held()
    finished = [name for name in server.cache if name not in server.cancelled]
    night, noon = 3, 13
    tokens = float(sum(t.shape[2] for t in server.cache.values()))
    return {
        "numbers": {
            "healthy": day(seed, Server(), cancelled=0)[-1], "fault": held[-1],
            "repaired": day(seed, Server(mended=True))[-1], "held": held[-1],
            "per_token": 1000 * server.held() / tokens, "tokens": tokens,
            "entries": float(len(server.cache)), "done": float(server.done),
            "gone": float(sum(gone)), "of_finished": float(len(finished)),
            "of_gone": float(len(server.cache) - len(finished)), "collected": collected,
            "grown_night": grown[night], "done_night": float(REQUESTS - gone[night]),
            "tokens_night": float(long[night]), "grown_morning": grown[9],
            "done_morning": float(REQUESTS - gone[9]), "tokens_morning": float(long[9]),
            "grown_noon": grown[noon], "done_noon": float(REQUESTS - gone[noon]),
            "tokens_noon": float(long[noon]),
            "short": day(seed, Server(), shorter=2)[-1],
            "older": day(seed, Server(width=OLD_WIDTH))[-1],
            "small": day(seed, Server(at_once=2))[-1],
            "patient": day(seed, Server(), cancelled=0)[-1],
            "anew": day(seed, Server(), range(3, 6))[-1]},
        "curves": {"held": {"x": [float(hour + 1) for hour in range(HOURS)],
                            "cache when nothing runs, kB": held}}}
