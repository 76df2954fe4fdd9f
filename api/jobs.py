"""`/v1/jobs`: submit, look, wait, cancel, fetch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from dataclasses import dataclass

from flask import Blueprint, Response, g, redirect, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from api import tracing
from api.problems import ProblemError, not_allowed
from api.reading import AUDIO_PART, Submission, idempotency_key, read_submission, wait_seconds
from api.waiting import LongPoll
from omnivoice.audio.files import AUDIO_FORMATS, ReferenceClip, check_reference
from omnivoice.parameters import FRAME_RATE
from omnivoice.planning import Reference, plan
from worker.jobs import names
from worker.jobs.errors import StorageError
from worker.jobs.ledger import CancelOutcome, JobRecord, Ledger, NewJob
from worker.jobs.models import JobRequest, JobResult, Status
from worker.jobs.settings import Settings
from worker.jobs.storage import ObjectStore

RETRY_AFTER_SECONDS = 1
"""What a client is told to wait before it looks again at a job that has not ended."""
_RETRY_AFTER = {"Retry-After": str(RETRY_AFTER_SECONDS)}


@dataclass(frozen=True, slots=True)
class JobRoutes:
    """The calls on jobs. Every job belongs to the key that made it; for other keys it does not exist."""

    settings: Settings
    ledger: Ledger
    store: ObjectStore
    long_poll: LongPoll

    def blueprint(self) -> Blueprint:
        routes = Blueprint("jobs", __name__, url_prefix="/v1/jobs")
        routes.add_url_rule("", "submit", self.submit, methods=["POST"])
        routes.add_url_rule("/<job_id>", "show", self.show, methods=["GET"])
        routes.add_url_rule("/<job_id>", "cancel", self.cancel, methods=["DELETE"])
        routes.add_url_rule("/<job_id>/audio", "audio", self.audio, methods=["GET"])
        return routes

    def submit(self) -> Response:
        """202 means that the job is in the ledger, and announced to the workers unless enough are before it."""
        key = idempotency_key(request)
        submission = read_submission(request)
        new = self._check(submission, key)
        if submission.audio is not None and new.reference_key is not None:
            # No media type of the client's choosing: a browser must not run these bytes as a page.
            self.store.put(new.reference_key, submission.audio, "application/octet-stream")
        record, _ = self.ledger.submit(new)
        g.job_id = record.id
        response = self._job(record, 202)
        response.headers["Location"] = url_for("jobs.show", job_id=record.id)
        return response

    def show(self, job_id: str) -> Response:
        wait = wait_seconds(request)
        record = self._find(job_id)
        honoured = False
        if wait is not None:
            record, honoured = self.long_poll.wait(record, wait)
        response = self._job(record, 200)
        if honoured:
            response.headers["Preference-Applied"] = f"wait={wait}"
        return response

    def cancel(self, job_id: str) -> Response:
        self._find(job_id)
        outcome = self.ledger.cancel(job_id)
        if outcome is CancelOutcome.ENDED:
            raise ProblemError(
                409, "the job has ended; an ended job never changes", kind="job-ended", title="Job ended"
            )
        # UNKNOWN here is a record whose retention ended between the two calls: _find says 404.
        return self._job(self._find(job_id), 200 if outcome is CancelOutcome.CANCELLED else 202)

    def audio(self, job_id: str) -> AnyResponse:
        record = self._find(job_id)
        if record.status is not Status.SUCCEEDED or record.result is None:
            detail = f"the job has no audio: it is {record.status.value}"
            headers = {} if record.status.is_final else _RETRY_AFTER
            raise ProblemError(409, detail, kind="no-audio", title="No audio", headers=headers)
        if self._retention_is_over(record) or not self.store.exists(self.store.key_of(record.result.uri)):
            raise ProblemError(410, "the retention of this audio is over", kind="gone")
        response = redirect(self._audio_url(record.id, record.result), code=302)
        response.headers["Cache-Control"] = "no-store"  # the link dies sooner than a cache would forget it
        return response

    def _check(self, submission: Submission, key: str | None) -> NewJob:
        """Everything that can be refused, before anything is stored. Raises `InvalidRequest` or `ProblemError`."""
        asked = JobRequest.parse(submission.fields)
        clip = _reference_clip(asked, submission.audio)
        reference = None
        if clip is not None and asked.ref_text is not None:
            reference = Reference(asked.ref_text, max(1, round(clip.seconds * FRAME_RATE)))
        planned = plan(asked.to_synthesis_request(), reference)
        digest = None if submission.audio is None else hashlib.sha256(submission.audio).hexdigest()
        return NewJob(
            id=names.new_job_id(),
            request=asked,
            estimate_seconds=planned.seconds,
            owner=g.owner,
            reference_key=None if digest is None else names.reference_key(digest, time.time()),
            warnings=(*planned.warnings, *(clip.warnings if clip is not None else ())),
            idempotency_key=key,
            fingerprint=_fingerprint(submission, digest),
            trace=tracing.current(),
        )

    def _find(self, job_id: str) -> JobRecord:
        """The caller's job. Raises `ProblemError` 404, the same for none and for another key's: ids must not leak."""
        record = self.ledger.get(job_id) if names.is_job_id(job_id) else None
        if record is None or record.owner != g.owner:
            raise ProblemError(404, "there is no such job, or it is another key's, or its retention is over")
        return record

    def _retention_is_over(self, record: JobRecord) -> bool:
        """True in the time between a shortened retention and the end of a record that was made under the longer one."""
        ended_ms = record.finished_at
        return ended_ms is not None and ended_ms + self.settings.retention_hours * 3_600_000 < time.time() * 1000

    def _audio_url(self, job_id: str, result: JobResult) -> str:
        """A link that works without a key for `audio_url_seconds`. Raises `StorageError`."""
        name = f"{job_id}.{AUDIO_FORMATS[result.format].extension}"
        return self.store.presign(self.store.key_of(result.uri), self.settings.audio_url_seconds, name)

    def _job(self, record: JobRecord, status: int) -> Response:
        links = {"self": url_for("jobs.show", job_id=record.id)}
        audio_url = None
        if record.result is not None and not self._retention_is_over(record):
            links["audio"] = url_for("jobs.audio", job_id=record.id)
            # A bucket of former settings: `/audio` says so, but how the job ended can still be told.
            with contextlib.suppress(StorageError):
                audio_url = self._audio_url(record.id, record.result)
        job = record.to_job(links, audio_url)
        response = Response(job.to_json(), status=status, mimetype="application/json")
        response.headers["Cache-Control"] = "no-store"
        if not record.status.is_final:
            response.headers.update(_RETRY_AFTER)
        return response


def _reference_clip(asked: JobRequest, audio: bytes | None) -> ReferenceClip | None:
    if audio is None:
        if asked.ref_text is not None:
            raise not_allowed("ref_text", f"needs the clip it is the transcript of, in the multipart part {AUDIO_PART}")
        return None
    if asked.ref_text is None:
        raise not_allowed("ref_text", f"is required with {AUDIO_PART}: what is said in the clip, word for word")
    return check_reference(audio, asked.ref_text)


def _fingerprint(submission: Submission, audio_digest: str | None) -> str:
    """Hash of what was sent, blind to the order of keys and to white space, for `Idempotency-Key`."""
    body = json.dumps([submission.fields, audio_digest], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(body.encode()).hexdigest()
