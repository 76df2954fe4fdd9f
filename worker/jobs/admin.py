"""`python -m worker.jobs`: look at the ledger's jobs and, where that is needed, lay hands on them.

Exit status 0: done; 1: the ledger says no (no such job, or not in that state), or the question was answered with no;
2: a bad argument or setting, or Redis or the object store cannot be used.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice

from redis.exceptions import RedisError

from worker.jobs import names
from worker.jobs.broker import make_celery, publish
from worker.jobs.catalogue import REQUEUED, Catalogue, Row
from worker.jobs.connection import connect
from worker.jobs.errors import QueueUnavailable, StartupError, StorageError
from worker.jobs.ledger import CancelOutcome, Ledger
from worker.jobs.models import Status
from worker.jobs.records import JobRecord
from worker.jobs.settings import Settings
from worker.jobs.startup import check_storage
from worker.jobs.storage import BRIEF, ObjectStore

REFUSED_STATUS = 1
UNUSABLE_STATUS = 2
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_ENDED = tuple(status for status in Status if status.is_final)


class Admin:
    """The commands over one service. Each returns an exit status."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        redis = connect(settings)
        self._ledger = Ledger(redis, settings)
        self._catalogue = Catalogue(redis, settings)

    def list(self, options: argparse.Namespace) -> int:
        rows = self._catalogue.rows(options.status or (), newest_first=not options.oldest)
        found = list(islice(rows, options.limit))
        if options.json:
            sys.stdout.writelines(json.dumps(dataclasses.asdict(row)) + "\n" for row in found)
            return 0
        _say(_line("id", "status", "queue", "created", "tries", "owner", "error"))
        for row in found:
            created = _time(row.created_ms)
            _say(_line(row.id, row.status, row.queue, created, str(row.attempts), row.owner, row.error or ""))
        return 0

    def show(self, options: argparse.Namespace) -> int:
        """With the text: whoever can reach Redis could read it there."""
        record = self._find(options.id)
        if record is None:
            return REFUSED_STATUS
        job = json.loads(record.to_job({}).to_json())
        _say(json.dumps({**job, "owner": record.owner}, ensure_ascii=False, indent=2))
        return 0

    def requeue(self, options: argparse.Namespace) -> int:
        return max(self._requeue(job_id) for job_id in options.id)

    def _requeue(self, job_id: str) -> int:
        record = self._find(job_id)
        if record is None:
            return REFUSED_STATUS
        outcome = self._catalogue.requeue(record)
        if outcome != REQUEUED:
            return _refuse(job_id, f"is {outcome}; only a job that failed can be queued again")
        is_announced = self._publish(job_id)
        _say(f"{job_id}: queued again" + ("" if is_announced else "; a worker will announce it"))
        return 0

    def _publish(self, job_id: str) -> bool:
        """False where the message could not be sent; nothing is to be sent for one that waits for its turn."""
        record = self._ledger.get(job_id)
        if record is None or not record.is_published:
            return True
        with make_celery(self._settings) as celery:
            return publish(celery, job_id, record.queue)

    def cancel(self, options: argparse.Namespace) -> int:
        return max(self._cancel(job_id) for job_id in options.id)

    def _cancel(self, job_id: str) -> int:
        match self._ledger.cancel(job_id):
            case CancelOutcome.CANCELLED:
                _say(f"{job_id}: cancelled")
            case CancelOutcome.CANCELLING:
                _say(f"{job_id}: runs, and ends as cancelled at its next step")
            case CancelOutcome.ENDED:
                return _refuse(job_id, "has ended already")
            case CancelOutcome.UNKNOWN:
                return _refuse(job_id, "no such job")
        return 0

    def purge(self, options: argparse.Namespace) -> int:
        if options.with_audio:
            check_storage(self._settings)  # before the first record is gone, by which its audio would be found
        latest_ms = self._catalogue.now_ms() - options.older_than * 1_000
        rows = [
            row
            for row in self._catalogue.rows(options.status or _ENDED)
            if row.finished_ms is not None and row.finished_ms <= latest_ms
        ]
        audio = " and their audio" if options.with_audio else "; their audio goes when its own time is over"
        if not rows:
            _say("no job is to be purged")
            return 0
        if not (options.yes or _agrees(f"Purge the records of {len(rows)} ended jobs{audio}?")):
            return REFUSED_STATUS
        store = ObjectStore(self._settings, BRIEF) if options.with_audio else None
        purged = sum(self._purge(row, options.older_than * 1_000, store) for row in rows)
        _say(f"{purged} of {len(rows)} purged")
        return 0 if purged == len(rows) else REFUSED_STATUS

    def _purge(self, row: Row, age_ms: int, store: ObjectStore | None) -> bool:
        """The audio first: without the record nobody would know of it."""
        if store is not None and row.status is Status.SUCCEEDED:
            record = self._find(row.id)
            if record is None or record.result is None:
                return False
            try:
                store.delete(store.key_of(record.result.uri))
            except StorageError as error:
                if error.retryable:
                    raise
                _refuse(row.id, f"kept: {error}")
                return False
        return self._catalogue.forget(row.id, age_ms)

    def _find(self, job_id: str) -> JobRecord | None:
        """None, and a line that says why, where there is no such job or it cannot be read."""
        try:
            record = self._ledger.get(job_id)
        except ValueError:  # pydantic's quotes what it read: the client's text
            _refuse(job_id, "its record cannot be read by this release")
            return None
        if record is None:
            _refuse(job_id, "no such job")
        return record


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command line; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        settings = Settings.from_environment(environ)
        return _run(settings, options)
    except (StartupError, StorageError, OSError) as error:
        return _unusable(str(error))


def _run(settings: Settings, options: argparse.Namespace) -> int:
    try:
        command: Callable[[argparse.Namespace], int] = getattr(Admin(settings), options.command)
        return command(options)
    except (QueueUnavailable, RedisError) as error:
        where = settings.describe()["OMNIVOICE_REDIS_URL"]
        return _unusable(f"Redis at {where} cannot be used: {str(error).removeprefix('Redis cannot be used: ')}")


def _unusable(reason: str) -> int:
    sys.stderr.write(" ".join(reason.split()) + "\n")
    return UNUSABLE_STATUS


def _parser() -> argparse.ArgumentParser:
    description = "Look at jobs and lay hands on them (settings: OMNIVOICE_*)."
    parser = argparse.ArgumentParser(prog="python -m worker.jobs", description=description)
    commands = parser.add_subparsers(dest="command", required=True)

    listing = commands.add_parser("list", help="jobs, the newest first")
    listing.add_argument(
        "--status", action="append", choices=[status.value for status in Status], help="may be repeated"
    )
    listing.add_argument("--oldest", action="store_true", help="the oldest first")
    listing.add_argument("--limit", type=_count, default=20, help="how many at most (default: %(default)s)")
    listing.add_argument("--json", action="store_true", help="a JSON object a line")

    show = commands.add_parser("show", help="everything about one job, its text included")
    show.add_argument("id", type=_job_id)
    requeue = commands.add_parser("requeue", help="queue failed jobs again, with all their attempts before them")
    requeue.add_argument("id", type=_job_id, nargs="+")
    cancel = commands.add_parser("cancel", help="cancel jobs that have not ended")
    cancel.add_argument("id", type=_job_id, nargs="+")

    purge = commands.add_parser("purge", help="remove the records of jobs that have ended")
    purge.add_argument(
        "--older-than", required=True, type=_seconds, metavar="AGE", help="since their end: 90s, 30m, 24h, 7d"
    )
    purge.add_argument("--status", action="append", choices=[status.value for status in _ENDED], help="may be repeated")
    purge.add_argument("--with-audio", action="store_true", help="delete their audio from the object store, too")
    purge.add_argument("--yes", action="store_true", help="do not ask")
    return parser


def _job_id(text: str) -> str:
    if not names.is_job_id(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no job's id: job_ and 32 hexadecimal digits")
    return text


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def _seconds(text: str) -> int:
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age: a whole number and s, m, h or d, like 24h")
    return int(found[1]) * _UNIT_SECONDS[found[2]]


def _agrees(question: str) -> bool:
    """Whether somebody at a terminal says yes. Where nobody is there, nobody does."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline().strip().lower()
    if answer not in ("y", "yes"):
        sys.stderr.write("nothing was purged\n")
        return False
    return True


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _refuse(job_id: str, reason: str) -> int:
    sys.stderr.write(f"{job_id}: {reason}\n")
    return REFUSED_STATUS


def _line(job_id: str, status: str, queue: str, created: str, attempts: str, owner: str, error: str) -> str:
    return f"{job_id:<36}  {status:<9}  {queue:<11}  {created:<20}  {attempts:>5}  {owner:<12}  {error}".rstrip()


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
