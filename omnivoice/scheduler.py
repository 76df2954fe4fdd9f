"""Which chunks run in the next step. Knows lengths and steps, no tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal

from omnivoice.chunk_run import ChunkRun

Mode = Literal["request", "step"]


class Scheduler:
    """First come, first served, within a number of chunks and of packed rows.

    In mode "step" waiting chunks join between any two steps; in mode "request" only an empty batch takes them. A chunk
    that alone is larger than the row budget still runs, by itself.
    """

    def __init__(self, mode: Mode, max_chunks: int, max_tokens: int) -> None:
        self.mode = mode
        self.max_chunks = max_chunks
        self.max_tokens = max_tokens
        self.running: list[ChunkRun] = []
        self._waiting: deque[ChunkRun] = deque()

    def add(self, runs: Iterable[ChunkRun]) -> None:
        self._waiting.extend(runs)

    def admitted(self) -> list[ChunkRun]:
        """Return the running chunks and those that may join them now."""
        if self.running and self.mode == "request":
            return self.running
        chosen = list(self.running)
        tokens = sum(run.num_tokens for run in chosen)
        while self._waiting and len(chosen) < self.max_chunks:
            tokens += self._waiting[0].num_tokens
            if chosen and tokens > self.max_tokens:
                break
            chosen.append(self._waiting.popleft())
        return chosen

    def halve(self) -> list[ChunkRun]:
        """Return the first half of the running chunks; the rest wait again, first in line, with what they have.

        Later batches keep to the size of that half, or the next step would be as large as the one that failed.
        """
        half, rest = self.running[: len(self.running) // 2], self.running[len(self.running) // 2 :]
        self._waiting.extendleft(reversed(rest))
        self.max_tokens = sum(run.num_tokens for run in half)
        return half

    def forget(self, request_id: str) -> list[ChunkRun]:
        """Drop a request's waiting chunks; return the running ones without it."""
        self._waiting = deque(run for run in self._waiting if run.request_id != request_id)
        return [run for run in self.running if run.request_id != request_id]
