"""What was promised for every job that a test has accepted, judged by the soak's checker from Redis and the bucket."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

from servers import S3Server, s3_client, wait_until
from workers import JOB_SECONDS, Desk

from tests.soak.checker import Keys, Store, judge, num_open
from tests.soak.evidence import Evidence, Submission
from worker.jobs.models import Status


class Promises:
    """Submits jobs at a desk and remembers them: each has to end once, with one visible object of its own content."""

    def __init__(self, desk: Desk, server: S3Server) -> None:
        self._desk = desk
        self._server = server
        self._evidence = Evidence()

    def submit(self, text: str, *, is_lost: bool = False) -> str:
        """Past the API; the job's id. `is_lost` as at the desk."""
        submission, body = self.draft(text)
        job_id = self._desk.submit(is_lost=is_lost, **body)
        self.accept(job_id, submission)
        return job_id

    def draft(self, text: str, key: str | None = None) -> tuple[Submission, dict[str, Any]]:
        """A job of half a second that is about to be sent over HTTP, and the body to send. `key` is its idempotency
        key, where it has one. It may come to be a job even where no answer says so."""
        submission = Submission(len(self._evidence.submissions), text, key=key)
        self._evidence.note_attempt(submission)
        metadata = {"index": str(submission.index)}
        return submission, {"text": text, "duration": submission.duration, "metadata": metadata}

    def accept(self, job_id: str, submission: Submission) -> None:
        """It was answered with 202."""
        assert self._evidence.note_accepted(job_id, submission), "one id for two submissions"

    def assert_kept(self, seconds: float = JOB_SECONDS, max_attempts: int = 3) -> Counter[str]:
        """Wait until no job and no message is left, then judge; gives the jobs by status."""
        desk, keys = self._desk, Keys(self._desk.settings.redis_prefix)
        ids = list(self._evidence.accepted)
        for record in desk.wait_ended(ids, seconds):
            self._evidence.note_status(record.id, record.status.value)
        wait_until(lambda: not num_open(desk.redis, keys), seconds, "the last message to be taken")
        with contextlib.closing(s3_client(self._server)) as client:
            store = Store(client, desk.settings.s3_bucket, f"{desk.settings.s3_prefix}/")
            verdict = judge(desk.redis, store, self._evidence, max_attempts, keys)
        assert verdict.complaints == []
        assert verdict.num_heard == verdict.num_by_status[Status.SUCCEEDED.value]
        assert sum(verdict.num_by_status.values()) == len(ids) + verdict.num_unanswered
        return verdict.num_by_status
