"""What stands still in the synthesizer, which is what a watchdog must know."""

from __future__ import annotations

import time

from batchers import entry

from worker.occupancy import Occupancy


def test_what_runs_moves_with_every_step_and_what_is_finishing_does_not() -> None:
    inside = Occupancy()
    assert inside.stands_since is None
    long, short = entry("A long text."), entry("A short one.")
    for one in (long, short):
        inside.add(one, closed_at=0.0, window="win")
    added = inside.stands_since
    assert added is not None
    assert added <= time.monotonic()

    inside.note_step()
    stepped = inside.stands_since
    assert stepped is not None
    assert stepped > added

    inside.finish([short.request_id])
    finishing = inside.stands_since
    for _ in range(3):
        inside.note_step()  # of the long one alone: whoever finishes the short one may hang meanwhile
    assert inside.stands_since is not None
    assert finishing is not None
    assert inside.stands_since >= finishing
    since = inside.stands_since
    inside.note_step()
    assert inside.stands_since == since

    inside.end(short.request_id)
    inside.note_step()
    assert inside.stands_since > since
    inside.end(long.request_id)
    assert inside.stands_since is None
