"""When requests come to an engine or a service in a benchmark."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence


class Arrivals:
    """When requests come: at `times`, seconds; in a closed loop also after each result, until `resend_until`."""

    def __init__(self, times: Sequence[float], resend_until: float = 0.0) -> None:
        self._times = sorted(times)
        self._resend_until = resend_until

    @classmethod
    def closed_loop(cls, clients: int, end: float) -> Arrivals:
        """So many clients that always have one request in flight."""
        return cls([0.0] * clients, end)

    @classmethod
    def poisson(cls, rate: float, end: float, seed: int = 0) -> Arrivals:
        """Independent arrivals at `rate` a second; the same for the same seed."""
        return cls(poisson_times(rate, end, seed))

    def due(self, now: float) -> list[float]:
        """The arrivals up to now that were not handed out yet, oldest first."""
        due = []
        while self._times and self._times[0] <= now:
            due.append(heapq.heappop(self._times))
        return due

    @property
    def are_over(self) -> bool:
        """Nobody comes any more, unless after a result."""
        return not self._times

    def on_result(self, now: float) -> None:
        if now < self._resend_until:
            heapq.heappush(self._times, now)


class Clients(Arrivals):
    """So many clients with one request in flight each, until `total` have been sent."""

    def __init__(self, clients: int, total: int) -> None:
        super().__init__([0.0] * min(clients, total), resend_until=float("inf"))
        self._left = total - min(clients, total)

    def on_result(self, now: float) -> None:
        if self._left:
            self._left -= 1
            super().on_result(now)


def poisson_times(rate: float, end: float, seed: int) -> list[float]:
    """Arrival times in [0, end), seconds, with exponential gaps of mean 1/rate."""
    random_ = random.Random(seed)
    times: list[float] = []
    now = random_.expovariate(rate)
    while now < end:
        times.append(now)
        now += random_.expovariate(rate)
    return times
