"""A server's scheduler as lanes of time: which requests wait, are read, write, or are evicted."""

import random
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from dlsys_helpers.explorers import Bars, Choice, Heatmap, Slider, explorer

REQUESTS, SHOWN = 160, 32        # simulated, and drawn: the first ones
SECONDS, COLUMNS = 24.0, 160     # drawn
LONG, EVERY = 6000, 16           # tokens of each 16th prompt; the others have 50 to 300
BATCH = 8                        # rows of a static batch
STEP, TOKEN = 0.010, 0.0002      # seconds: for the weights once, then for each token of a step
RULES = {"a batch at a time": "static", "continuous, prefill first": None, "pieces of 2048": 2048,
         "pieces of 512": 512, "pieces of 128": 128}
AWAY, WAITS, READ, WRITES, OUT = range(5)


@dataclass(eq=False)
class Job:
    """A request: when it came, tokens of its prompt, tokens that it will write, and where it is."""

    place: int
    at: float
    prompt: int
    wanted: int
    read: int = 0                # of the prompt and what it wrote before it was evicted
    written: int = 0
    thrown: int = 0
    times: list = field(default_factory=list)
    spans: list = field(default_factory=list)

    @property
    def held(self):
        """Tokens whose keys it needs: its prompt, and all that it wrote."""
        return self.prompt + self.written


def workload(pause):
    """The same requests at every setting; only the seconds between arrivals follow `pause`."""
    rng, now, jobs = random.Random(0), 0.0, []
    for place in range(REQUESTS):
        now += pause * rng.expovariate(1.0)
        prompt = LONG if place % EVERY == 5 else rng.randint(50, 300)
        jobs.append(Job(place, now, prompt, rng.randint(30, 120)))
    return jobs


def move(jobs, start, end, state):
    for job in jobs:
        job.spans.append((start, end, state))


def write(jobs, now):
    """Each job has written one more token."""
    for job in jobs:
        job.written += 1
        job.times.append(now)


def batches(jobs):
    """Rows come and go together: padded to the longest prompt, held until the last has written."""
    now, waiting = 0.0, list(jobs)
    while waiting:
        now = max(now, waiting[0].at)
        batch = [job for job in waiting if job.at <= now][:BATCH]
        waiting = waiting[len(batch):]
        end = now + STEP + TOKEN * len(batch) * max(job.prompt for job in batch)
        move(batch, now, end, READ)
        now = end
        write(batch, now)
        while any(job.written < job.wanted for job in batch):
            end = now + STEP + TOKEN * len(batch)
            still = [job for job in batch if job.written < job.wanted]
            move(still, now, end, WRITES)
            now = end
            write(still, now)
    return now


def admit(waiting, live, now, room):
    """Admit, in order, the requests that have arrived and fit."""
    while waiting and waiting[0].at <= now and (
            not live or sum(job.held for job in live) + waiting[0].held < room):
        live.append(waiting.pop(0))


def throw_out(waiting, live, now, room):
    """While the next tokens do not fit, evict the newest; it will be read again from the start."""
    while len(live) > 1 and sum(job.held + 1 for job in live) > room:
        job = live.pop()
        job.read, job.thrown = 0, job.thrown + 1
        job.spans.append((now, now + 0.3, OUT))
        waiting.insert(0, job)


def continuous(jobs, piece, room):
    """Requests come and go at each step; prompts are read whole and alone, or in pieces."""
    now, waiting, live = 0.0, list(jobs), []
    while waiting or live:
        if not live:
            now = max(now, waiting[0].at)
        admit(waiting, live, now, room)
        throw_out(waiting, live, now, room)
        writing = [job for job in live if job.written and job.read == job.held - 1]
        reading = [job for job in live if job not in writing]
        if piece is None and reading:
            writing = []
        left = max(1, piece - len(writing)) if piece else LONG * REQUESTS
        done, tokens = [], 0
        for job in reading:
            some = min(job.held - job.read, left - tokens)
            job.read, tokens = job.read + some, tokens + some
            done += [job] if some else []
        end = now + STEP + TOKEN * (tokens + len(writing))
        move(done, now, end, READ)
        move(writing, now, end, WRITES)
        now = end
        for job in writing:
            job.read += 1                     # the token that it was fed
        write([*writing, *(job for job in done if job.read == job.held)], now)
        live = [job for job in live if job.written < job.wanted]
    return now


def lanes(jobs):
    """(SHOWN, COLUMNS) states of the first requests; the first of them at the bottom."""
    shown, times = np.zeros((SHOWN, COLUMNS)), (np.arange(COLUMNS) + 0.5) * SECONDS / COLUMNS
    for row, job in enumerate(jobs[:SHOWN]):
        shown[row, (times >= job.at) & (times < job.times[-1])] = WAITS
        for start, end, state in sorted(job.spans, key=lambda span: span[2]):
            first = int(start / SECONDS * COLUMNS)
            shown[row, first:max(first + 1, int(end / SECONDS * COLUMNS))] = state
    return shown


def percentile(values, share):
    """The least of the values that this share does not exceed."""
    return sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]


@lru_cache(maxsize=128)
def run(rule, pause, room):
    """(lanes, facts) of one simulated run; times in seconds."""
    jobs, piece = workload(pause), RULES[rule]
    span = batches(jobs) if piece == "static" else continuous(jobs, piece, room)
    first = [job.times[0] - job.at for job in jobs]
    gaps = [b - a for job in jobs for a, b in zip(job.times, job.times[1:], strict=False)]
    return lanes(jobs), {
        "p99": percentile(gaps, 0.99), "worst": max(gaps), "first": percentile(first, 0.99),
        "rate": sum(job.written for job in jobs) / (span - jobs[0].at),
        "thrown": sum(job.thrown for job in jobs)}


@explorer(
    title="A scheduler, lane by lane",
    controls=[
        Choice("rule", "Scheduler", RULES, "continuous, prefill first"),
        Slider("pause", "Seconds between two arrivals, on average", (0.3, 0.4, 0.5, 0.7), 0.4),
        Slider("room", "Tokens whose keys fit into memory", (7000, 8000, 40_000), 40_000),
    ],
    views=[
        Heatmap("lanes", title=f"The first {SHOWN} requests",
                xlabel="seconds", ylabel="request", vmin=0, vmax=4, xlim=(0, SECONDS),
                ylim=(0, SHOWN), label="1 waits, 2 is read, 3 writes, 4 out"),
        Bars("gaps", ["wait between tokens, 99 %", "wait between tokens, worst",
                      "time to the first token, 99 %"], title="Seconds", limit=80, unit=" s"),
        Bars("rate", ["tokens a second"], title="Written by all requests", limit=800),
    ],
)
def scheduler(rule, pause, room):
    """The lanes of the first requests, and what the whole run measures."""
    shown, facts = run(rule, pause, room)
    gaps = [round(facts[key], 3) for key in ("p99", "worst", "first")]
    return {"lanes": shown, "gaps": gaps, "rate": [round(facts["rate"], 1)]}, (
        f"{rule[0].upper()}{rule[1:]}, an arrival each {pause:g} s, room for {room:,} tokens: 99 % "
        f"of the waits between two tokens take {gaps[0]:.3f} s or less, the worst {gaps[1]:.2f} s; "
        f"99 % wait {gaps[2]:.2f} s or less for their first token. {facts['rate']:.0f} tokens a "
        f"second, {facts['thrown']} requests thrown out.")
