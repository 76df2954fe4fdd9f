"""What clients were told: the checker holds the service to it."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

FINAL = ("succeeded", "failed", "cancelled", "expired")


@dataclass(frozen=True)
class Submission:
    """One job as a client wants it; every field follows from the seed and the index."""

    index: int
    text: str
    queue: str = "interactive"
    duration: float = 0.5
    clip: int | None = None
    expires_in: float | None = None
    cancel_after: float | None = None
    key: str | None = None
    fetches_audio: bool = False


@dataclass
class Accepted:
    """A job that was answered with 202. `seen` are the final statuses that any answer named; `cancel_answers` the
    status codes of DELETE, 0 for an answer that was lost."""

    submission: Submission
    seen: set[str] = field(default_factory=set)
    cancel_answers: list[int] = field(default_factory=list)


class Evidence:
    """Collected by many threads, read when they have ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.submissions: dict[int, Submission] = {}
        self.accepted: dict[str, Accepted] = {}
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()

    def note_attempt(self, submission: Submission) -> None:
        """Before it is sent: it may be stored and its answer lost."""
        with self._lock:
            self.submissions[submission.index] = submission

    def note_accepted(self, job_id: str, submission: Submission) -> bool:
        """False where this job was known already: an idempotent repetition."""
        with self._lock:
            is_new = job_id not in self.accepted
            entry = self.accepted.setdefault(job_id, Accepted(submission))
            if entry.submission != submission:
                self.problems.append(f"{job_id} answers submissions {entry.submission.index} and {submission.index}")
            return is_new

    def note_status(self, job_id: str, status: str) -> bool:
        """Whether the job has ended."""
        with self._lock:
            if status in FINAL:
                self.accepted[job_id].seen.add(status)
            elif self.accepted[job_id].seen:
                self.problems.append(f"{job_id} was {self.accepted[job_id].seen} and is {status} again")
        return status in FINAL

    def note_cancel(self, job_id: str, answer: int) -> None:
        with self._lock:
            self.accepted[job_id].cancel_answers.append(answer)

    def complain(self, problem: str) -> None:
        with self._lock:
            self.problems.append(problem)

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1
