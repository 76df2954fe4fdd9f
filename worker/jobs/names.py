"""Names of everything that is shared: job ids, Redis keys, queues, objects. Pure functions."""

from __future__ import annotations

import calendar
import hashlib
import re
import secrets
import time

TASK_NAME = "omnivoice.synthesize"
_HOUR = "%Y-%m-%dT%H"
_JOB_ID = re.compile(r"^job_[0-9a-f]{32}$")


def new_job_id() -> str:
    """`job_` and 32 hex digits: 48 bits of milliseconds since 1970, then 80 random bits, so that ids sort by age."""
    return f"job_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def is_job_id(text: str) -> bool:
    """Whether `text` looks like an id of ours. Check before it becomes part of a key."""
    return _JOB_ID.fullmatch(text) is not None


def job_key(prefix: str, job_id: str) -> str:
    """Redis hash that holds a job's record."""
    return f"{prefix}:job:{job_id}"


def due_key(prefix: str, queue: str) -> str:
    """Redis sorted set: a queue's jobs that wait, scored by the ms at which the reconciler must look at them."""
    return f"{prefix}:due:{queue}"


def leases_key(prefix: str, queue: str) -> str:
    """Redis sorted set: a queue's jobs that a worker holds, scored by the ms at which its lease ends."""
    return f"{prefix}:leases:{queue}"


def ages_key(prefix: str, queue: str) -> str:
    """Redis sorted set: a queue's unfinished jobs, scored by the ms at which they were submitted."""
    return f"{prefix}:ages:{queue}"


def totals_key(prefix: str) -> str:
    """Redis hash: how many jobs were submitted, ended, retried … since the ledger began, by queue."""
    return f"{prefix}:totals"


def ended_channel(prefix: str) -> str:
    """Redis channel on which the id of each job that ends is published."""
    return f"{prefix}:ended"


def cancelled_channel(prefix: str) -> str:
    """Redis channel on which the id of each running job that is to be cancelled is published."""
    return f"{prefix}:cancelled"


def idempotency_key(prefix: str, owner: str, key: str) -> str:
    """Redis hash that remembers an owner's `Idempotency-Key`; hashed, since clients choose its text."""
    digest = hashlib.sha256(f"{owner}\0{key}".encode()).hexdigest()
    return f"{prefix}:idempotency:{digest}"


def broker_prefix(prefix: str) -> str:
    """What kombu puts before each of its own keys."""
    return f"{prefix}:broker:"


def message_list_key(prefix: str, queue: str) -> str:
    """Redis list in which kombu keeps a queue's messages. `preamble.lua` knows it too."""
    return broker_prefix(prefix) + queue


def unpublished_key(prefix: str, queue: str) -> str:
    """Redis list: ids of a queue's jobs for which there is no message yet, in the order in which they came."""
    return f"{prefix}:unpublished:{queue}"


def audio_key(job_id: str, token: int, extension: str) -> str:
    """Object of a job's audio. The token makes it one lease's own, so that a late copy cannot overwrite it."""
    return f"audio/{job_id}/{token}.{extension}"


def reference_key(sha256: str, seconds: float) -> str:
    """Object of a reference clip, named by its content and the hour: a clip sent with many jobs is stored once an hour.

    So an object that was stored hours before `seconds` (since 1970) is never taken for a new job: it can be deleted
    once its jobs have ended, without a look at who is just submitting.
    """
    return f"references/h{time.strftime(_HOUR, time.gmtime(seconds))}/{sha256}"


def key_seconds(key: str) -> float | None:
    """Seconds since 1970 at which the key of an object was made, where it tells. Keys of a folder sort by them."""
    if found := re.match(r"[a-z]+/job_([0-9a-f]{12})", key):
        return int(found[1], 16) / 1000
    if found := re.match(r"references/h([0-9T-]{13})/", key):
        return calendar.timegm(time.strptime(found[1], _HOUR))
    return None


def reference_users_key(prefix: str, reference_key: str) -> str:
    """Redis set: ids of the unfinished jobs that need a reference clip. `preamble.lua` knows it too."""
    return f"{prefix}:users:{reference_key}"


def data_key(prefix: str) -> str:
    """Redis string: names the data that Redis holds; gone, or another one, once that was lost."""
    return f"{prefix}:data"


def sweep_keys(prefix: str) -> tuple[str, str]:
    """Redis strings: there while a round of the sweeper is nobody's turn; the object's key behind which to go on."""
    return f"{prefix}:sweep:turn", f"{prefix}:sweep:position"
