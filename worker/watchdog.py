"""Ends the process when the synthesizer hangs: the threads pool has no time limits, and a hung GPU call cannot
be interrupted. The leases of its jobs then lapse and other workers take them over."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

EXIT_STATUS = 70
"""`EX_SOFTWARE`: whoever restarts workers can tell this end from a drain (0) and a failed start (2)."""
LOOKS_PER_DEADLINE = 20


class Watchdog:
    """Looks at `busy_since` (monotonic seconds, None when idle) and exits the process once that is too long ago.

    However long a text takes, its steps end: what counts is the time without one.
    """

    def __init__(self, busy_since: Callable[[], float | None], deadline_seconds: float) -> None:
        self._busy_since = busy_since
        self._deadline_seconds = deadline_seconds
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def run(self) -> None:
        self._thread.start()

    def _watch(self) -> None:
        while True:
            time.sleep(min(1.0, self._deadline_seconds / LOOKS_PER_DEADLINE))
            since = self._busy_since()
            if since is None or time.monotonic() - since <= self._deadline_seconds:
                continue
            logger.critical("no step has ended for more than %g s: the process ends", self._deadline_seconds)
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
            # Not sys.exit: that would wait for the thread that hangs.
            os._exit(EXIT_STATUS)
