"""Deletes the objects that no job needs any more: retention for the object store, as Redis's own expiry is for records.

Three folders are swept, each in the order of its keys, which is that of their age: `audio/`, of jobs whose records have
expired (late copies that nobody removed included), `references/` that no unfinished job names (those of refused
submissions included), and what interrupted checks left in `checks/`. Ages are by the store's own clock.
"""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import dataclass

from worker.jobs import names
from worker.jobs.errors import QueueUnavailable, StorageError
from worker.jobs.ledger import Ledger
from worker.jobs.settings import Settings
from worker.jobs.storage import ObjectStore, StoredObject

logger = logging.getLogger(__name__)

ROUND_SECONDS = 10.0
"""A round is made so often, by one process of all."""
MAX_PAGES = 10
MAX_OBJECTS_PER_PAGE = 1_000
"""What S3 lists, and deletes, in one call."""
MIN_REFERENCE_SECONDS = 2 * 3600.0
"""A clip may be sent again, and its object be taken for the new job, for an hour after it was stored."""
CHECK_SECONDS = 3600.0
_AUDIO, _CHECKS, _REFERENCES = FOLDERS = ("audio/", "checks/", "references/")
_JOB = re.compile(r"(?:audio|checks)/(job_[0-9a-f]{32})(?:/|$)")


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Seconds for which objects are kept at least; a record, or an unfinished job, keeps its own for longer."""

    audio: float
    reference: float
    check: float = CHECK_SECONDS

    @classmethod
    def of(cls, settings: Settings) -> Lifetimes:
        retention = settings.retention_hours * 3600
        # A link that was given out just before the record's end still works for its time.
        return cls(retention + settings.audio_url_seconds, max(retention, MIN_REFERENCE_SECONDS))


class Sweeper:
    """Sweeps, on a thread of its own, the objects of one service: a bucket and prefix must not serve two of them."""

    def __init__(
        self,
        ledger: Ledger,
        store: ObjectStore,
        lifetimes: Lifetimes,
        stopped: threading.Event,
        max_objects: int = MAX_OBJECTS_PER_PAGE,
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._lifetimes = {_AUDIO: lifetimes.audio, _CHECKS: lifetimes.check, _REFERENCES: lifetimes.reference}
        self._stopped = stopped
        self._max_objects = max_objects
        self._thread = threading.Thread(target=self._sweep_for_ever, name="sweeper", daemon=True)

    def run(self) -> None:
        self._thread.start()

    def _sweep_for_ever(self) -> None:
        while not self._stopped.is_set():
            try:
                self.sweep()
            except QueueUnavailable as error:
                logger.warning("objects are not swept: %s", error, extra={"outage": "redis"})
            except StorageError as error:
                # A name of its own: one who may not list must not silence what is said of a store that is gone.
                logger.warning("objects are not swept: %s", error, extra={"outage": "sweeping"})
            except Exception:
                logger.exception("objects are not swept")
            self._stopped.wait(ROUND_SECONDS)

    def sweep(self) -> int:
        """One round, where it is this process's turn: at most `MAX_PAGES` pages. Returns how many objects it deleted.

        The next round goes on where this one ends; after the last folder it begins anew.
        """
        position = self._ledger.begin_sweep(ROUND_SECONDS)
        if position is None:
            return 0
        num_deleted = 0
        for _ in range(MAX_PAGES):
            num_page, position = self._sweep_page(position)
            self._ledger.note_sweep(position)
            num_deleted += num_page
            if not position:
                break
        if num_deleted:
            logger.info("%d objects deleted that no job needs any more", num_deleted)
        return num_deleted

    def _sweep_page(self, position: str) -> tuple[int, str]:
        """Sweep one page behind a key; (objects deleted, where to go on)."""
        folder = next((folder for folder in FOLDERS if position.startswith(folder)), FOLDERS[0])
        page, is_last = self._store.page(folder, position, self._max_objects)
        old = [item.key for item in page if item.age_seconds >= self._lifetimes[folder]]
        doomed = self._unneeded(folder, old)
        self._store.delete_all(doomed)
        if not is_last and not self._is_young(folder, page[-1]):
            return len(doomed), page[-1].key
        following = FOLDERS.index(folder) + 1
        return len(doomed), FOLDERS[following] if following < len(FOLDERS) else ""

    def _unneeded(self, folder: str, keys: list[str]) -> list[str]:
        """Of keys that are old enough, those that may go. What this service does not name like that is not its own."""
        if folder == _REFERENCES:
            used = self._ledger.used_references(keys)
            return [key for key in keys if key not in used]
        jobs = {key: found[1] for key in keys if (found := _JOB.match(key))}
        kept = self._ledger.known(jobs.values()) if folder == _AUDIO else set()
        return [key for key, job_id in jobs.items() if job_id not in kept]

    def _is_young(self, folder: str, last: StoredObject) -> bool:
        """Whether all that follows is too young: its keys were made later, and its objects after their keys."""
        born_seconds = names.key_seconds(last.key)
        return born_seconds is not None and last.listed_seconds - born_seconds < self._lifetimes[folder]
