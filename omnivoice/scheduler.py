"""Which chunks run in the next step. Knows lengths and steps, no tensors."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Literal

from omnivoice.chunk_run import ChunkRun

Mode = Literal["request", "step"]


class Scheduler:
    """Requests take turns, a chunk each, within a number of chunks and of packed rows.

    Turns go in the order of arrival, and a chunk that does not fit is waited for: nobody overtakes it, so that neither
    a large chunk nor a short request behind a long text waits for ever.

    In mode "step" waiting chunks join between any two steps; in mode "request" only an empty batch takes them. A chunk
    that alone is larger than the row budget still runs, by itself.
    """

    def __init__(self, mode: Mode, max_chunks: int, max_tokens: int) -> None:
        self.mode = mode
        self.max_chunks = max_chunks
        self.max_tokens = max_tokens
        self.running: list[ChunkRun] = []
        self._returned: deque[ChunkRun] = deque()  # they ran already and are first in line
        self._waiting: OrderedDict[str, deque[ChunkRun]] = OrderedDict()

    @property
    def has_work(self) -> bool:
        """Whether chunks run or wait to."""
        return bool(self.running or self._returned or self._waiting)

    def add(self, runs: Iterable[ChunkRun]) -> None:
        for run in runs:
            self._waiting.setdefault(run.request_id, deque()).append(run)

    def admitted(self) -> list[ChunkRun]:
        """Return the running chunks and those that may join them now."""
        if self.running and self.mode == "request":
            return self.running
        chosen = list(self.running)
        tokens = sum(run.num_tokens for run in chosen)
        while len(chosen) < self.max_chunks and (candidate := self._next()) is not None:
            tokens += candidate.num_tokens
            if chosen and tokens > self.max_tokens:
                break
            self._take(candidate)
            chosen.append(candidate)
        return chosen

    def halve(self) -> list[ChunkRun]:
        """Return the first half of the running chunks; the rest wait again, first in line, with what they have.

        Later batches keep to the size of that half, or the next step would be as large as the one that failed.
        """
        half, rest = self.running[: len(self.running) // 2], self.running[len(self.running) // 2 :]
        self._returned.extendleft(reversed(rest))
        self.max_tokens = sum(run.num_tokens for run in half)
        return half

    def forget(self, request_id: str) -> list[ChunkRun]:
        """Drop a request's waiting chunks; return the running ones without it."""
        self._returned = deque(run for run in self._returned if run.request_id != request_id)
        self._waiting.pop(request_id, None)
        return [run for run in self.running if run.request_id != request_id]

    def _next(self) -> ChunkRun | None:
        if self._returned:
            return self._returned[0]
        return next(iter(self._waiting.values()))[0] if self._waiting else None

    def _take(self, run: ChunkRun) -> None:
        if self._returned:
            self._returned.popleft()
            return
        chunks = self._waiting.pop(run.request_id)
        chunks.popleft()
        if chunks:
            self._waiting[run.request_id] = chunks
