"""What goes wrong, when, and for how long: a schedule drawn from a seed, and the hands that carry it out."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import psutil

from tests.soak.cluster import Cluster, Slot, worker_name
from tests.soak.proxy import Proxy
from tests.soak.recovery import Watch

PROCESS_KINDS = {
    "worker kill": 3,
    "worker stop+kill": 2,
    "worker term": 2,
    "worker stall": 2,
    "worker overtaken": 2,
    "api kill": 2,
    "api worker kill": 1,
}
"""Kinds by how often each comes in a deck. `stop+kill` stops a worker first, so that messages are pushed to it and it
dies between taking and noting them; `stall` stops it for longer than its lease and lets it go on; `overtaken` lets it
go on at the very moment at which another worker has leased one of its jobs, so that both work on it."""
BACKEND_KINDS = {
    "redis kill": 3,
    "redis freeze": 1,
    "redis reset": 1,
    "redis half-open": 1,
    "redis lost answers": 2,
    "s3 500": 1,
    "s3 503": 1,
    "s3 slow": 1,
    "s3 broken bodies": 1,
    "s3 lost answers": 1,
    "s3 half-open": 1,
}
FIRST_FAULT_SECONDS = 2.0
PAUSE_BEFORE_KILL_SECONDS = 0.3
READY_SECONDS = 90.0
IDLE_SECONDS, BETWEEN_LOOKS_SECONDS = 3.0, 0.05
"""How long a fault waits for its worker to hold jobs, and how often it looks: struck idle, it would lose nothing."""
OVERTAKEN_LEASES = 3.0


@dataclass(frozen=True)
class Fault:
    """`at` and `seconds` (how long it lasts, where it lasts) are seconds; `amount` is a number of answers, or every
    how manieth request is struck; `worker` the index of the worker concerned."""

    at: float
    kind: str
    seconds: float
    amount: int
    worker: int

    def __str__(self) -> str:
        return f"{self.at:7.2f} s  {self.kind:<19} worker {self.worker}  {self.seconds:5.2f} s  amount {self.amount}"


def draw_schedule(
    seed: int,
    span_seconds: float,
    seconds_per_fault: float,
    num_workers: int,
    lease_seconds: float,
    only: Collection[str] = (),
) -> list[Fault]:
    """Faults over `span_seconds`, one every `seconds_per_fault` on average, in turn to a process and to a server.

    `only` are the kinds to choose from, where not all are wanted.
    """
    rng = random.Random(f"faults/{seed}")
    wanted = [
        {kind: count for kind, count in kinds.items() if not only or kind in only}
        for kinds in (PROCESS_KINDS, BACKEND_KINDS)
    ]
    decks = [_cards(kinds, rng) for kinds in wanted if kinds]
    faults: list[Fault] = []
    at = FIRST_FAULT_SECONDS
    while at < span_seconds:
        kind = next(decks[len(faults) % len(decks)])
        if kind == "worker stall":
            seconds = lease_seconds * rng.uniform(1.3, 2.5)
        else:
            seconds = rng.uniform(0.2, 1.0) if kind.endswith("kill") else rng.uniform(1.5, 6.0)
        faults.append(Fault(round(at, 2), kind, round(seconds, 2), rng.randint(1, 4), rng.randrange(num_workers)))
        at += seconds_per_fault * rng.uniform(0.5, 1.5)
    return faults


def _cards(kinds: dict[str, int], rng: random.Random) -> Iterator[str]:
    """Each kind as often as it says, shuffled, then again: every kind comes, also in a short run."""
    while True:
        deck = [kind for kind, count in kinds.items() for _ in range(count)]
        rng.shuffle(deck)
        yield from deck


class Injector:
    """Carries a schedule out: one thread for faults of processes, one for those of servers, so that they overlap."""

    def __init__(self, cluster: Cluster, watch: Watch, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._watch = watch
        self._say = say
        self._lease_seconds = cluster.settings.lease_seconds
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.done: list[tuple[Fault, float, float]] = []
        """Faults with the monotonic times of their begin and end."""
        self.problems: list[str] = []

    def start(self, schedule: list[Fault]) -> None:
        began_at = time.monotonic()
        for kinds in (PROCESS_KINDS, BACKEND_KINDS):
            lane = [fault for fault in schedule if fault.kind in kinds]
            thread = threading.Thread(target=self._run, args=(lane, began_at), name="faults", daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def is_alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Inject no more, and wait for what lasts."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, lane: list[Fault], began_at: float) -> None:
        for fault in lane:
            if self._stopping.wait(max(0.0, began_at + fault.at - time.monotonic())):
                return
            start = time.monotonic()
            self._say(f"fault at {start - began_at:7.2f} s: {fault}")
            try:
                self._inject(fault)
            except Exception as error:  # noqa: BLE001  told in the summary: the soak itself has failed
                self.problems.append(f"the soak could not inject {fault.kind!r}: {type(error).__name__}: {error}")
            self.done.append((fault, start, time.monotonic()))

    def _inject(self, fault: Fault) -> None:
        match fault.kind.split(" ", 1):
            case ["worker", how]:
                self._harm_worker(fault, how)
            case ["api", "kill"]:
                self._cluster.api.signal(signal.SIGKILL, hold_seconds=fault.seconds)
                self._await(self._cluster.api_lives)
                self._watch_unfinished(fault)
            case ["api", "worker kill"]:
                self._kill_child(self._cluster.api)
                self._await(self._cluster.api_lives)
                self._watch_unfinished(fault)
            case ["redis", "kill" | "freeze" as how]:
                self._harm_redis(fault, how)
                self._watch_unfinished(fault)
            case ["redis", how]:
                self._harm_connections(self._cluster.redis_proxy, fault, how)
            case ["s3", how]:
                self._harm_connections(self._cluster.s3_proxy, fault, how)

    def _harm_worker(self, fault: Fault, how: str) -> None:
        slot = self._cluster.workers[fault.worker]
        pid = slot.pid
        if pid is None or not slot.is_ready():  # it is still starting from the last time
            self._await(slot.is_ready)
            pid = slot.pid or 0
        worker = worker_name(pid)
        first = signal.SIGTERM if how == "term" else signal.SIGKILL if how == "kill" else signal.SIGSTOP
        jobs = self._stop_at_work(slot, worker)
        self._watch.until_elsewhere(fault.kind, fault.at, jobs, worker)
        if how in ("term", "kill"):
            slot.signal(first)
            slot.signal(signal.SIGCONT)
            return
        if how == "overtaken":
            self._watch.wait_until_leased_elsewhere(jobs, worker, OVERTAKEN_LEASES * self._lease_seconds)
        else:
            self._stopping.wait(PAUSE_BEFORE_KILL_SECONDS if how == "stop+kill" else fault.seconds)
        slot.signal(signal.SIGKILL if how == "stop+kill" else signal.SIGCONT)

    def _stop_at_work(self, slot: Slot, worker: str) -> list[str]:
        """Stop a worker while it holds jobs, and give their ids; one that gets none for a while is stopped idle.

        Stopped before they are looked up: else it would let go of some, and lease others, meanwhile.
        """
        deadline = time.monotonic() + IDLE_SECONDS
        while True:
            slot.signal(signal.SIGSTOP)
            jobs = self._watch.held_by(worker)
            if jobs or time.monotonic() > deadline or self._stopping.is_set():
                return jobs
            slot.signal(signal.SIGCONT)
            self._stopping.wait(BETWEEN_LOOKS_SECONDS)

    def _kill_child(self, slot: Slot) -> None:
        """Kill gunicorn's worker and leave its master, which starts another."""
        children = psutil.Process(slot.pid).children() if slot.pid else []
        for child in children:
            os.kill(child.pid, signal.SIGKILL)

    def _harm_redis(self, fault: Fault, how: str) -> None:
        redis = self._cluster.redis
        if how == "kill":
            redis.signal(signal.SIGKILL, hold_seconds=fault.seconds)
            self._stopping.wait(fault.seconds)
        else:
            redis.signal(signal.SIGSTOP)
            self._stopping.wait(fault.seconds)
            redis.signal(signal.SIGCONT)
        self._await(self._cluster.redis_answers)

    def _harm_connections(self, proxy: Proxy, fault: Fault, how: str) -> None:
        jobs = self._watch.unfinished() if how in ("reset", "half-open", "lost answers") else []
        self._watch.until_ended(fault.kind, fault.at, jobs)
        every = 1 + fault.amount // 2
        match how:
            case "reset":
                proxy.reset_all()
            case "half-open":
                proxy.forget_all()
            case "lost answers":
                proxy.lose_answers(5 * fault.amount)
            case "500" | "503":
                proxy.answer_with(int(how), every)
            case "slow":
                proxy.slow_down(every)
            case "broken bodies":
                proxy.break_bodies(every)
        if how in ("500", "503", "slow", "broken bodies"):
            self._stopping.wait(fault.seconds)
            proxy.behave()
            self._watch_unfinished(fault)

    def _watch_unfinished(self, fault: Fault) -> None:
        self._watch.until_ended(fault.kind, fault.at, self._watch.unfinished())

    def _await(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not ready again after {READY_SECONDS:.0f} s")
            time.sleep(0.05)
