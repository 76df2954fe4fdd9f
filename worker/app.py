"""The worker process put together: ledger, store, batcher and their threads around a Celery consumer."""

from __future__ import annotations

import logging
import os
import signal
import socket
import warnings
from functools import partial

from celery import signals
from celery.exceptions import SecurityWarning

from worker.batcher import Batcher
from worker.delivery import Delivery
from worker.jobs.broker import make_celery, publish
from worker.jobs.ledger import Ledger
from worker.jobs.models import Queue
from worker.jobs.reconciler import Reconciler
from worker.jobs.settings import Settings
from worker.jobs.storage import ObjectStore
from worker.leases import Leases
from worker.lifecycle import Drain
from worker.runner import JobRunner
from worker.synthesizers import Synthesizer
from worker.task import register_task
from worker.voices import Voices
from worker.watchdog import Watchdog
from worker.window import WindowLimits

logger = logging.getLogger(__name__)

THREADS_PER_BATCH_REQUEST = 4
"""One batch generating, one being decoded, one forming, one uploading."""
BROKEN_EXIT_STATUS = 71


class Worker:
    """One process: one synthesizer, one batcher, a Celery consumer with threads. `store` defaults to the settings'."""

    def __init__(self, settings: Settings, synthesizer: Synthesizer, store: ObjectStore | None = None) -> None:
        self._settings = settings
        self._exit_status = 0
        self._celery = make_celery(settings)
        self._store = store or ObjectStore(settings)
        ledger = Ledger.from_settings(settings)
        announce = partial(publish, self._celery, first=True)
        self._batcher = Batcher(
            synthesizer,
            WindowLimits(settings.max_wait_ms / 1_000, settings.max_batch_requests, settings.max_batch_tokens),
            ledger.start,
            self._on_broken,
            joins_between_steps=settings.mode == "step",
        )
        self._leases = Leases(ledger, settings.lease_seconds, self._batcher.abort)
        self._reconciler = Reconciler(ledger, announce, settings.lease_seconds)
        self._drain = Drain(self._batcher, self._leases, ledger, settings.drain_seconds, self._reconciler.stop)
        self._watchdog = Watchdog(lambda: self._batcher.busy_since, settings.batch_deadline_seconds)
        runner = self._build_runner(ledger, announce)
        register_task(self._celery, runner.run)

    def run(self) -> int:
        """Consume until a signal ends it; the exit status."""
        for part in (self._batcher, self._leases, self._watchdog, self._drain, self._reconciler):
            part.run()
        # Celery keeps only weak references to receivers: these live as long as this call.
        on_shutting_down = signals.worker_shutting_down.connect(lambda **_: self._drain.request(), weak=False)
        keep_logging = signals.setup_logging.connect(_keep_our_logging, weak=False)
        on_ready = signals.worker_ready.connect(_log_ready, weak=False)
        try:
            return self._consume()
        finally:
            signals.worker_shutting_down.disconnect(on_shutting_down)
            signals.setup_logging.disconnect(keep_logging)
            signals.worker_ready.disconnect(on_ready)

    def _consume(self) -> int:
        # Celery's warning of root is about pickled messages, which are not accepted here, and fills several lines.
        warnings.simplefilter("ignore", SecurityWarning)
        if os.geteuid() == 0:
            logger.info("runs as root, which nothing here needs: a user of its own is safer")
        consumer = self._celery.Worker(
            pool="threads",
            concurrency=THREADS_PER_BATCH_REQUEST * self._settings.max_batch_requests,
            queues=[queue.value for queue in Queue],
            hostname=_worker_name(),
            redirect_stdouts=False,
            quiet=True,
            # They talk to the other workers through the broker, for nothing that is used here.
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )
        consumer.start()
        return self._exit_status or int(consumer.exitcode or 0)

    def _build_runner(self, ledger: Ledger, announce: partial[bool]) -> JobRunner:
        settings = self._settings

        def is_draining() -> bool:
            return self._drain.is_requested

        return JobRunner(
            ledger,
            self._batcher,
            self._leases,
            Voices(self._store, ledger, self._batcher, settings.lease_seconds, is_draining),
            Delivery(ledger, self._store, settings.lease_seconds, is_draining),
            announce,
            worker_name=_worker_name(),
            lease_seconds=settings.lease_seconds,
            max_attempts=settings.max_attempts,
            is_draining=is_draining,
        )

    def _on_broken(self, reason: str) -> None:
        logger.critical("the worker ends, its synthesizer is broken: %s", reason)
        self._exit_status = BROKEN_EXIT_STATUS
        # The same way out as a drain: everything is handed back, and whoever restarts workers sees the status.
        os.kill(os.getpid(), signal.SIGTERM)


def _worker_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def _keep_our_logging(**_: object) -> None:
    """Celery leaves logging alone when this signal has a receiver."""


def _log_ready(**_: object) -> None:
    logger.info("ready as %s", _worker_name())
