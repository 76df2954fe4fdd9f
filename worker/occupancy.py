"""What is in the synthesizer, by stage, and what has come out of it and is not safe yet."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from worker.entry import Entry
from worker.window import Load, passable_since


@dataclass(slots=True, eq=False)
class Occupant:
    """An entry in the synthesizer.

    `batch_size` is that of the largest batch that it was generated in, `moved_at` the monotonic time of the last step
    that it ran in, of its coming where it is, or of the last part of the finishing.
    """

    entry: Entry
    closed_at: float
    window: str
    batch_size: int = 1
    moved_at: float = field(default_factory=time.monotonic)


class Occupancy:
    """Entries by request id. Not locked: its owner sees to that.

    An entry runs while it is generated, is finishing while the synthesizer decodes it beside the others' steps, and is
    unsettled from its result until its job has ended. True while there is anything in the synthesizer.
    """

    def __init__(self) -> None:
        self._running: dict[str, Occupant] = {}
        self._finishing: dict[str, Occupant] = {}
        self._unsettled: dict[Entry, float] = {}  # monotonic time of the result

    def __bool__(self) -> bool:
        return bool(self._running or self._finishing)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_finishing(self) -> int:
        return len(self._finishing)

    @property
    def entries(self) -> list[Entry]:
        return [occupant.entry for occupant in self._occupants]

    @property
    def stands_since(self) -> float | None:
        """Monotonic time since when some entry has not moved."""
        return min((occupant.moved_at for occupant in self._occupants), default=None)

    @property
    def load(self) -> Load:
        running = [occupant.entry.candidate for occupant in self._running.values()]
        return Load(
            num_requests=len(running),
            num_tokens=sum(candidate.num_tokens for candidate in running),
            runs_alone=any(entry.candidate.runs_alone for entry in self.entries),
            num_finishing=len(self._finishing),
            num_unsettled=len(self._unsettled),
            passable_since=passable_since(self._unsettled.values(), time.monotonic()),
        )

    def add(self, entry: Entry, closed_at: float, window: str) -> None:
        self._running[entry.request_id] = Occupant(entry, closed_at, window)

    def note_batch_size(self) -> None:
        """In step mode the size changes while a request runs: it reports the largest it was part of."""
        for occupant in self._running.values():
            occupant.batch_size = max(occupant.batch_size, len(self._running))

    def note_step(self) -> None:
        """A step has ended: what runs has moved."""
        for occupant in self._running.values():
            occupant.moved_at = time.monotonic()

    def note_finishing(self) -> None:
        """A part of what is finishing is done. One follows another, so all have moved."""
        for occupant in self._finishing.values():
            occupant.moved_at = time.monotonic()

    def finish(self, request_ids: Iterable[str]) -> None:
        """These are generated. Unknown ids are ignored: of what has ended, and of what a failed step left behind."""
        for request_id in request_ids:
            if occupant := self._running.pop(request_id, None):
                occupant.moved_at = time.monotonic()
                self._finishing[request_id] = occupant

    def end(self, request_id: str) -> Occupant | None:
        """A request that came out: unsettled from now on. None for an unknown id."""
        occupant = self._running.pop(request_id, None) or self._finishing.pop(request_id, None)
        if occupant is not None:
            self._unsettled[occupant.entry] = time.monotonic()
        return occupant

    def settle(self, entry: Entry) -> None:
        self._unsettled.pop(entry, None)

    def clear(self) -> list[Entry]:
        """Forget what is in the synthesizer, and return it."""
        entries = self.entries
        self._running.clear()
        self._finishing.clear()
        return entries

    @property
    def _occupants(self) -> list[Occupant]:
        return [*self._running.values(), *self._finishing.values()]
