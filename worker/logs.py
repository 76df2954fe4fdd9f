"""One JSON object a line on standard error, with the job and the attempt where there is one."""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import MemoryHandler

from worker import log_context
from worker.jobs.errors import StartupError
from worker.jobs.outages import OncePerOutage

FIELDS = (
    *("job", "attempt", "trace_id", "window", "batch_size", "status", "settings"),
    *("reason", "jobs", "tokens", "bytes", "ms"),
)
"""What a log call may pass in `extra`, or its thread has bound (`worker.log_context`). Never the request: its text is
its owner's."""

MAX_HELD_BACK = 1_000


class JsonLines(logging.Formatter):
    """A record as one line. Of an exception it keeps type and places, not the message, which may quote a request."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "event": record.getMessage(),
        }
        given = {**log_context.current(), **record.__dict__}
        line.update({name: given[name] for name in FIELDS if given.get(name) is not None})
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__qualname__
            frames = traceback.extract_tb(record.exc_info[2])
            line["frames"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return json.dumps(line, ensure_ascii=False, default=str)


class StandardError(logging.Handler):
    """Writes a line in one call and takes no lock for it.

    Under a lock all threads that log wait for one that has written its line, and waits for the interpreter.
    """

    def createLock(self) -> None:  # noqa: N802  logging's name
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            os.write(sys.stderr.fileno(), (self.format(record) + "\n").encode(errors="backslashreplace"))
        except Exception:  # noqa: BLE001  as every handler of logging does
            self.handleError(record)


class BrokerOutage(logging.Filter):
    """Celery tells in two lines of each of its attempts to reach the broker: one line, once an outage, will do."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if text.startswith(("consumer: Cannot connect to", "consumer: Connection to broker lost")):
            record.msg, record.args = "no message is taken until Redis is back: " + text.split("\n", 1)[0], None
            record.outage = "redis: messages"
        return True


def _is_of_use(record: logging.LogRecord) -> bool:
    """Celery warns at each lost connection of what a later release will do with the tasks in hand: the ledger does."""
    return "CPendingDeprecationWarning" not in record.getMessage()


@contextmanager
def logs_of_a_start(level: str) -> Iterator[None]:
    """Send the root logger to standard error, but hold it back inside the block.

    A `StartupError` there is to be one line: what was said before it is dropped. Warnings are not held back (a download
    may take minutes). Celery and boto3 speak from `warning` on, whatever our own level is.
    """
    handler = StandardError()
    handler.setFormatter(JsonLines())
    handler.addFilter(OncePerOutage())
    held_back = MemoryHandler(capacity=MAX_HELD_BACK, flushLevel=logging.WARNING, target=handler)
    root = logging.getLogger()
    root.handlers[:] = [held_back]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    for name in ("celery", "kombu", "amqp", "botocore", "boto3", "urllib3", "s3transfer"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("celery.worker.consumer.consumer").addFilter(BrokerOutage())
    logging.getLogger("py.warnings").addFilter(_is_of_use)
    try:
        yield
    except StartupError:
        held_back.setTarget(None)
        raise
    held_back.flush()
    root.handlers[:] = [handler]
