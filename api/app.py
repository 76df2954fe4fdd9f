"""The application factory."""

from __future__ import annotations

import threading

from flask import Flask, Response

from api import logs, metrics, problems, tracing
from api.access import Access
from api.docs import DocsRoutes
from api.health import HealthRoutes, StorageProbe
from api.jobs import JobRoutes
from api.keys import load_keys
from api.openapi import build_openapi
from api.waiting import LongPoll
from worker.jobs.ledger import Ledger
from worker.jobs.settings import Settings
from worker.jobs.storage import PROBE, ObjectStore

STOPPING = "omnivoice.stopping"
"""Key in `Flask.extensions` of the `threading.Event` that ends long polls when the process is told to stop."""
_MAX_FORM_PARTS = 8


def create_app(settings: Settings, ledger: Ledger, store: ObjectStore) -> Flask:
    """The API over one ledger and one store.

    Connects to nothing. Raises `StartupError` for a keys file or an origin list that cannot be used.
    """
    app = Flask("api", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_request_bytes
    app.config["MAX_FORM_MEMORY_SIZE"] = settings.max_request_bytes
    app.config["MAX_FORM_PARTS"] = _MAX_FORM_PARTS
    app.url_map.strict_slashes = True
    app.url_map.merge_slashes = False
    app.json.ensure_ascii = False  # type: ignore[attr-defined]  # Flask's default provider has it
    keys = load_keys(settings.api_keys_file)
    stopping = threading.Event()
    app.extensions[STOPPING] = stopping
    # Half of the threads at most hold a long poll, so that the others always find one free.
    long_poll = LongPoll(ledger, stopping, max_waiting=settings.api_threads // 2)
    tracing.register(app)
    logs.register(app)
    metrics.register(app)
    Access.from_settings(settings, keys).register(app)
    problems.register(app)
    app.after_request(_harden)
    app.register_blueprint(HealthRoutes(ledger, StorageProbe(ObjectStore(settings, PROBE))).blueprint())
    app.register_blueprint(metrics.MetricsRoutes(ledger, metrics.parse_readers(settings, keys)).blueprint())
    app.register_blueprint(JobRoutes(settings, ledger, store, long_poll).blueprint())
    app.register_blueprint(DocsRoutes(build_openapi(keys_needed=not keys.is_open)).blueprint())
    return app


def _harden(response: Response) -> Response:
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    return response
