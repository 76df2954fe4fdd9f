"""One JSON line an event on standard error, for the API and for gunicorn.

A line holds the route's pattern, never a body, a header or a query: texts and keys of clients stay out of the log.
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from datetime import UTC, datetime
from typing import Any

from flask import Flask, Response, g, request

from api import tracing
from worker.jobs import names

_access_log = logging.getLogger("api.access")


class JsonFormatter(logging.Formatter):
    """A record as one line. Of an exception it keeps type and places, not the message, which may quote a request."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "event": record.getMessage(),
        }
        if (trace := tracing.current()) is not None:
            line["trace_id"] = trace.trace_id
        line.update(getattr(record, "fields", {}))
        if job_id := getattr(record, "job", None):  # so do the modules that the worker uses as well
            line["job"] = job_id
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__qualname__
            frames = traceback.extract_tb(record.exc_info[2])
            line["frames"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return json.dumps(line, ensure_ascii=False)


class NoSilentClients(logging.Filter):
    """gunicorn tells with a traceback of a client that was cut off since it was silent: no fault of the service."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], BlockingIOError))


def logging_config(level: str) -> dict[str, Any]:
    """`logging.config.dictConfig` for one process; gunicorn takes it as `logconfig_dict`."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": "api.logs.JsonFormatter"}},
        "filters": {
            "outages": {"()": "worker.jobs.outages.OncePerOutage"},
            "silent clients": {"()": "api.logs.NoSilentClients"},
        },
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": "json",
                "filters": ["outages"],
                "stream": "ext://sys.stderr",
            }
        },
        # Never lower: at DEBUG botocore and urllib3 write credentials' signatures, bodies and presigned links.
        "root": {"level": "WARNING", "handlers": ["stderr"]},
        "loggers": {
            **{package: {"level": level.upper()} for package in ("api", "worker", "omnivoice")},
            "gunicorn.error": {
                "level": "INFO",
                "handlers": ["stderr"],
                "filters": ["silent clients"],
                "propagate": False,
            },
            # One line a request comes from `register`; gunicorn's own would repeat it with the query.
            "gunicorn.access": {"level": "CRITICAL", "handlers": [], "propagate": False},
        },
    }


def register(app: Flask) -> None:
    """Log one line for each request of `app`. A view whose path names no job leaves its id in `g.job_id`."""

    @app.before_request
    def note_start() -> None:
        g.started_seconds = time.perf_counter()

    @app.after_request
    def write_line(response: Response) -> Response:
        started_seconds = g.get("started_seconds", time.perf_counter())
        job_id = str(g.get("job_id") or (request.view_args or {}).get("job_id"))
        fields = {
            "method": request.method,
            "route": request.url_rule.rule if request.url_rule is not None else None,
            "status": response.status_code,
            "ms": round((time.perf_counter() - started_seconds) * 1000, 1),
            "owner": g.get("owner"),
            "job": job_id if names.is_job_id(job_id) else None,
        }
        level = logging.DEBUG if request.path in ("/livez", "/readyz", "/metrics") else logging.INFO
        _access_log.log(level, "request", extra={"fields": fields})
        return response
