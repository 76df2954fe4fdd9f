"""`/metrics`: the ledger's numbers and this service's own, for Prometheus.

With several API processes each writes its counts into a file of its own, and whichever is asked adds them all up:
prometheus-client does both where PROMETHEUS_MULTIPROC_DIR names a folder, which has to be set before its import.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flask import Blueprint, Flask, Response, g, request
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from api.access import OPEN_OWNER
from api.keys import KeyRing
from api.problems import ProblemError
from worker.jobs.errors import QueueUnavailable, StartupError
from worker.jobs.ledger import Ledger
from worker.jobs.settings import Settings
from worker.jobs.stats import LedgerStats

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_FOLDER_PREFIX = "omnivoice-api-metrics-"
_MEMORY = Path("/dev/shm")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

_log = logging.getLogger(__name__)

_OWN = CollectorRegistry()
REQUESTS = Counter("omnivoice_http_requests", "Answered HTTP requests", ["method", "route", "status"], registry=_OWN)
REQUEST_SECONDS = Histogram(
    "omnivoice_http_request_duration_seconds",
    "Time to an answer, but for long polls that were honoured",
    ["method", "route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=_OWN,
)


def share_between_processes(settings: Settings) -> None:
    """Before gunicorn starts: give several API processes a folder to count in, unless the environment names one."""
    if settings.api_workers > 1 and not os.environ.get(SHARED_FOLDER):
        # In memory where that can be: a disk that stalls must not hold up a request.
        place = _MEMORY if _MEMORY.is_dir() else None
        os.environ[SHARED_FOLDER] = tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=place)


def remove_shared() -> None:
    """When gunicorn has ended: remove the folder that `share_between_processes` made."""
    folder = Path(os.environ.get(SHARED_FOLDER, ""))
    if folder.name.startswith(_FOLDER_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


def parse_readers(settings: Settings, keys: KeyRing) -> frozenset[str]:
    """Names of the keys that may read; empty for all. Raises `StartupError` for a name that no key has."""
    readers = frozenset(name.strip() for name in settings.metrics_readers.split(",") if name.strip())
    if unknown := sorted(readers - {key.name for key in keys.keys}):
        raise StartupError(f"OMNIVOICE_METRICS_READERS: no key of OMNIVOICE_API_KEYS_FILE is named {unknown[0]!r}")
    return readers


class LedgerCollector(Collector):
    """Asks the ledger at every scrape. An outage of Redis is a value of `omnivoice_ledger_up`, not a failed scrape."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("omnivoice_ledger_up", "Whether Redis answered this scrape")
        try:
            stats = self._ledger.stats()
        except QueueUnavailable as error:
            _log.warning("no numbers of the queue: %s", error)
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        yield from _gauges(stats)
        yield from _totals(stats)


def _gauges(stats: LedgerStats) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("omnivoice_queue_jobs", "Unfinished jobs", labels=["queue", "state"])
    age = GaugeMetricFamily(
        "omnivoice_queue_oldest_job_age_seconds", "Age of the oldest unfinished job, 0 where none is", labels=["queue"]
    )
    for queue, one in stats.items():
        jobs.add_metric([queue.value, "waiting"], one.num_waiting)
        jobs.add_metric([queue.value, "leased"], one.num_leased)
        age.add_metric([queue.value], one.oldest_seconds or 0.0)
    yield jobs
    yield age


def _totals(stats: LedgerStats) -> Iterator[Metric]:
    ended = CounterMetricFamily("omnivoice_jobs_ended", "Jobs that ended, by status", labels=["queue", "status"])
    for queue, one in stats.items():
        for status, number in one.ended.items():
            ended.add_metric([queue.value, status.value], number)
    yield ended
    simple = {
        "omnivoice_jobs_submitted": ("Jobs that were accepted", "submitted"),
        "omnivoice_job_attempts": ("Attempts of the jobs that have ended", "attempts"),
        "omnivoice_job_retries": ("Jobs that were queued again after an attempt that failed", "retried"),
        "omnivoice_jobs_announced_again": ("Overdue jobs whose message was sent again", "announced"),
        "omnivoice_leases_lapsed": ("Leases that ended without a word of their worker", "lapsed"),
        "omnivoice_jobs_requeued": ("Failed jobs that an operator queued again", "requeued"),
        "omnivoice_poison_jobs": ("Jobs that failed since each attempt was lost with its worker", "poison"),
    }
    for name, (description, attribute) in simple.items():
        family = CounterMetricFamily(name, description, labels=["queue"])
        for queue, one in stats.items():
            family.add_metric([queue.value], getattr(one, attribute))
        yield family


@dataclass(frozen=True, slots=True)
class MetricsRoutes:
    """`readers` are the owners that may read; empty for every one that `api.access` lets in."""

    ledger: Ledger
    readers: frozenset[str]

    def blueprint(self) -> Blueprint:
        routes = Blueprint("metrics", __name__)
        routes.add_url_rule("/metrics", "metrics", self.show, methods=["GET"])
        return routes

    def show(self) -> Response:
        if self.readers and g.owner not in self.readers and g.owner != OPEN_OWNER:
            raise ProblemError(403, "this key may not read metrics; OMNIVOICE_METRICS_READERS names those that may")
        registry = CollectorRegistry()
        registry.register(LedgerCollector(self.ledger))
        if os.environ.get(SHARED_FOLDER):
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # it registers itself
        else:
            registry.register(_OWN)
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        response = Response(encode(registry), content_type=content_type)
        response.headers["Cache-Control"] = "no-store"
        return response


def register(app: Flask) -> None:
    """Count every request of `app`. Labels are the route's pattern and a known method: clients choose neither."""

    @app.after_request
    def count(response: Response) -> Response:
        method = request.method if request.method in _METHODS else "other"
        route = request.url_rule.rule if request.url_rule is not None else "unmatched"
        REQUESTS.labels(method, route, str(response.status_code)).inc()
        started = g.get("started_seconds")
        if started is not None and "Preference-Applied" not in response.headers:
            REQUEST_SECONDS.labels(method, route).observe(time.perf_counter() - started)
        return response
