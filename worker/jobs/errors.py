"""Every error that the job queue raises. Each text is one line, fit for a log or for whoever caused it."""

from __future__ import annotations

from collections.abc import Sequence

from omnivoice.errors import InvalidRequest


class StartupError(Exception):
    """Something that the process needs is missing or refuses it; the process prints the line and exits with 2."""


class SettingsError(StartupError):
    """An `OMNIVOICE_*` variable is unknown or has a value that is not allowed; the text names it."""


class QueueUnavailable(Exception):
    """Redis did not answer or refused to write. Nothing is known to have changed; the call may be repeated."""


class NewerRelease(QueueUnavailable):
    """The record is one that only a newer release can read. Nothing is wrong with Redis."""


class QueueFull(Exception):
    """The queue holds as many unfinished jobs as `max_queue` allows; try again in `retry_after` seconds."""

    def __init__(self, max_queue: int, retry_after: int) -> None:
        super().__init__(f"the queue holds its {max_queue} unfinished jobs; try again in {retry_after} s")
        self.retry_after = retry_after


class IdempotencyConflict(Exception):
    """The idempotency key was used before, with another body."""


class StorageError(Exception):
    """The object store did not do what was asked; the text names the cause.

    `retryable` tells whether the same call may succeed later (unreachable, no space) or not (wrong credentials).
    """

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class InvalidJob(InvalidRequest):
    """A job's body has one or more fields that are not allowed.

    `field` and `message` are the first problem's, as in every `InvalidRequest`; `problems` holds all of them as
    (field, message).
    """

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__(*problems[0])
        self.problems = tuple(problems)
