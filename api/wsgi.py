"""The application as gunicorn loads it: one of its own in every worker process, with connections of its own."""

from __future__ import annotations

import os
from functools import partial

from flask import Flask

from api.app import create_app
from worker.jobs.broker import make_celery, publish
from worker.jobs.connection import connect
from worker.jobs.ledger import Ledger
from worker.jobs.settings import Settings
from worker.jobs.storage import BRIEF, ObjectStore


def build() -> Flask:
    """The application of the environment's settings. Raises `StartupError`; connects to nothing yet."""
    settings = Settings.from_environment(os.environ)
    ledger = Ledger(connect(settings), settings)
    return create_app(settings, ledger, ObjectStore(settings, BRIEF), partial(publish, make_celery(settings)))
