"""Fields that every log line of a thread carries while it works on a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_fields: ContextVar[Mapping[str, object]] = ContextVar("log_fields")


def current() -> Mapping[str, object]:
    return _fields.get({})


@contextmanager
def bound(**fields: object) -> Iterator[None]:
    """Add fields, beside those that are bound already, inside the block."""
    token = _fields.set({**current(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)
