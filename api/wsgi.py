"""The application as gunicorn loads it: one of its own in every worker process, with connections of its own."""

from __future__ import annotations

import os
from functools import partial

from flask import Flask

from api.app import STOPPING, create_app
from worker.jobs.broker import make_celery, publish
from worker.jobs.connection import connect_for_clients
from worker.jobs.ledger import Ledger
from worker.jobs.reconciler import Reconciler
from worker.jobs.settings import Settings
from worker.jobs.storage import BRIEF, ObjectStore
from worker.jobs.sweeper import Lifetimes, Sweeper


def build() -> Flask:
    """The application of the environment's settings, a reconciler and a sweeper beside it. Raises `StartupError`."""
    settings = Settings.from_environment(os.environ)
    ledger = Ledger(connect_for_clients(settings), settings)
    store = ObjectStore(settings, BRIEF)
    app = create_app(settings, ledger, store)
    announce = partial(publish, make_celery(settings), first=True)
    Reconciler(ledger, announce, settings.lease_seconds, app.extensions[STOPPING]).run()
    Sweeper(ledger, store, Lifetimes.of(settings), app.extensions[STOPPING]).run()
    return app
