"""The load: client threads that submit, resubmit, cancel, poll and fetch over HTTP, as strangers would."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np

from tests.soak.evidence import Evidence, Submission
from tests.sounds import wav_of

NUM_SUBMITTERS = 8
NUM_POLLERS = 4
TIMEOUT_SECONDS = 30.0
SUBMIT_DEADLINE_SECONDS = 120.0
PAUSE_SECONDS = 0.3
LOOK_AGAIN_SECONDS = 0.5
LONG_POLL_SHARE = 0.1
SECOND_LOOK_SHARE = 0.2
CLIP_RATE = 16_000
NUM_CLIPS = 6
REF_TEXT = "Nice to meet you, I have heard a lot about your work."
WORDS = ["river", "window", "seven", "copper", "market", "early", "silent", "harbour", "yellow", "garden", "paper"]
RETRY_STATUS = (429, 503)


def draw_submission(seed: int, index: int) -> Submission:
    """The `index`-th job of the run."""
    rng = random.Random(f"job/{seed}/{index}")
    text = f"Job {index}: {' '.join(rng.choices(WORDS, k=rng.randint(2, 6)))}."
    kind = rng.choices(["plain", "clip", "cancel", "expires", "key", "fetch"], [50, 10, 10, 10, 10, 10])[0]
    return Submission(
        index=index,
        text=text,
        queue=rng.choices(["interactive", "bulk"], [60, 40])[0],
        duration=0.04 * rng.randint(8, 24),
        clip=rng.randrange(NUM_CLIPS) if kind == "clip" else None,
        expires_in=round(rng.choice([0.2, 1.0, 5.0, 60.0]) * rng.uniform(0.5, 1.5), 2) if kind == "expires" else None,
        cancel_after=rng.choice([0.0, rng.uniform(0.0, 1.0)]) if kind == "cancel" else None,
        key=f"soak-{seed}-{index}" if kind == "key" else None,
        fetches_audio=kind == "fetch",
    )


def make_clip(number: int) -> bytes:
    """A WAV file of three seconds that could be a voice as far as a check can tell; one a number."""
    moment = np.arange(3 * CLIP_RATE) / CLIP_RATE
    samples = 0.3 * np.sin(2 * np.pi * (150 + 20 * number) * moment) * (1 + 0.5 * np.sin(2 * np.pi * 3 * moment))
    return wav_of(samples, CLIP_RATE)


class Clients:
    """Submits `num_jobs` jobs, `rate` a second, and watches each to its end."""

    def __init__(self, address: str, evidence: Evidence, seed: int, num_jobs: int, rate: float) -> None:
        self._address = address
        self._evidence = evidence
        self._seed = seed
        self._num_jobs = num_jobs
        self._rate = rate
        self._clips = [make_clip(number) for number in range(NUM_CLIPS)]
        self._indices: Iterator[int] = itertools.count()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._watched: list[list[tuple[float, str]]] = [[] for _ in range(NUM_POLLERS)]
        """Of each poller, a heap of jobs by the time of the next look at them. Guarded by `_lock`."""
        self._began_at = 0.0
        self._submitters = [threading.Thread(target=self._submit_all, daemon=True) for _ in range(NUM_SUBMITTERS)]
        self._pollers = [threading.Thread(target=self._poll, args=(n,), daemon=True) for n in range(NUM_POLLERS)]

    def start(self) -> None:
        self._began_at = time.monotonic()
        for thread in (*self._submitters, *self._pollers):
            thread.start()

    @property
    def is_submitting(self) -> bool:
        return any(thread.is_alive() for thread in self._submitters)

    @property
    def num_watched(self) -> int:
        """Jobs that somebody still means to look at."""
        with self._lock:
            return sum(map(len, self._watched))

    def stop(self) -> None:
        self._stopping.set()
        for thread in (*self._submitters, *self._pollers):
            thread.join()

    def _client(self) -> httpx.Client:
        return httpx.Client(base_url=self._address, timeout=TIMEOUT_SECONDS, trust_env=False)

    # -- submitting ----------------------------------------------------------------------------------------------------

    def _submit_all(self) -> None:
        with self._client() as client:
            while not self._stopping.is_set():
                with self._lock:
                    index = next(self._indices)
                if index >= self._num_jobs:
                    return
                if self._stopping.wait(max(0.0, self._began_at + index / self._rate - time.monotonic())):
                    return
                self._submit(client, draw_submission(self._seed, index))

    def _submit(self, client: httpx.Client, submission: Submission) -> None:
        job_id = self._post_until_accepted(client, submission)
        if job_id is None:
            return
        if submission.key is not None:
            self._submit_again(client, submission, job_id)
        self._watch(job_id, 0.0)
        if submission.cancel_after is not None:
            self._stopping.wait(submission.cancel_after)
            self._cancel(client, job_id)

    def _post_until_accepted(self, client: httpx.Client, submission: Submission) -> str | None:
        self._evidence.note_attempt(submission)
        deadline = time.monotonic() + SUBMIT_DEADLINE_SECONDS
        while not self._stopping.is_set():
            answer = self._ask(client, "POST", "/v1/jobs", **self._body(submission))
            if answer is not None and answer.status_code == 202:
                job_id = str(answer.json()["id"])
                self._evidence.note_accepted(job_id, submission)
                return job_id
            if answer is not None and answer.status_code not in RETRY_STATUS:
                self._evidence.complain(f"submission {submission.index} was answered {_told(answer)}")
                return None
            if time.monotonic() > deadline:
                self._evidence.complain(
                    f"submission {submission.index} was not taken within {SUBMIT_DEADLINE_SECONDS} s"
                )
                return None
            self._stopping.wait(PAUSE_SECONDS)
        return None

    def _submit_again(self, client: httpx.Client, submission: Submission, job_id: str) -> None:
        answer = self._ask(client, "POST", "/v1/jobs", **self._body(submission))
        if answer is None or answer.status_code in RETRY_STATUS:
            return
        if answer.status_code != 202 or answer.json()["id"] != job_id:
            self._evidence.complain(f"repeated with its key, {job_id} was answered {_told(answer)}")
        self._evidence.count("idempotent repetitions")

    def _body(self, submission: Submission) -> dict[str, Any]:
        fields: dict[str, Any] = {"text": submission.text, "queue": submission.queue, "duration": submission.duration}
        fields["metadata"] = {"index": str(submission.index)}
        if submission.expires_in is not None:
            fields["expires_in"] = submission.expires_in
        if submission.clip is not None:
            body = {"request": json.dumps({**fields, "ref_text": REF_TEXT})}
            return {"data": body, "files": {"ref_audio": ("clip.wav", self._clips[submission.clip])}}
        return {"json": fields, "headers": {"Idempotency-Key": submission.key} if submission.key else {}}

    def _cancel(self, client: httpx.Client, job_id: str) -> None:
        """Until it is answered: a cancel whose answer was lost is asked for again."""
        while not self._stopping.is_set():
            answer = self._ask(client, "DELETE", f"/v1/jobs/{job_id}")
            self._evidence.note_cancel(job_id, 0 if answer is None else answer.status_code)
            if answer is not None and answer.status_code not in RETRY_STATUS:
                if answer.status_code not in (200, 202, 409):
                    self._evidence.complain(f"the cancelling of {job_id} was answered {_told(answer)}")
                return
            self._stopping.wait(PAUSE_SECONDS)

    # -- polling -------------------------------------------------------------------------------------------------------

    def _watch(self, job_id: str, in_seconds: float) -> None:
        with self._lock:
            heap = self._watched[int(job_id[-4:], 16) % NUM_POLLERS]
            heapq.heappush(heap, (time.monotonic() + in_seconds, job_id))

    def _next_due(self, poller: int) -> str | None:
        with self._lock:
            heap = self._watched[poller]
            return heapq.heappop(heap)[1] if heap and heap[0][0] <= time.monotonic() else None

    def _poll(self, poller: int) -> None:
        rng = random.Random(f"poller/{self._seed}/{poller}")
        second_looks: set[str] = set()
        with self._client() as client:
            while not self._stopping.is_set():
                job_id = self._next_due(poller)
                if job_id is None:
                    self._stopping.wait(0.02)
                elif not self._look(client, job_id, is_long=rng.random() < LONG_POLL_SHARE):
                    self._watch(job_id, LOOK_AGAIN_SECONDS)
                elif job_id not in second_looks and rng.random() < SECOND_LOOK_SHARE:
                    second_looks.add(job_id)
                    self._watch(job_id, rng.uniform(1.0, 10.0))

    def _look(self, client: httpx.Client, job_id: str, is_long: bool) -> bool:
        """Whether the job has ended, and nothing more is to be done about it."""
        answer = self._ask(client, "GET", f"/v1/jobs/{job_id}", headers={"Prefer": "wait=2"} if is_long else {})
        if answer is None or answer.status_code == 503:
            return False
        if answer.status_code != 200:
            self._evidence.complain(f"{job_id} was accepted, and GET answers {_told(answer)}")
            return True
        job = answer.json()
        if not self._evidence.note_status(job_id, job["status"]):
            return False
        submission = self._evidence.accepted[job_id].submission
        if job["status"] == "succeeded" and submission.fetches_audio:
            return self._fetch(client, job_id, job["result"])
        return True

    def _fetch(self, client: httpx.Client, job_id: str, result: dict[str, Any]) -> bool:
        """Whether the audio came, right or wrong."""
        answer = self._ask(client, "GET", f"/v1/jobs/{job_id}/audio", follow_redirects=True)
        if answer is None or answer.status_code in (500, 503):  # of the store, when it is the store that answers
            return False
        digest = hashlib.sha256(answer.content).hexdigest()
        if answer.status_code != 200 or digest != result["sha256"]:
            self._evidence.complain(f"the audio of {job_id} is {_told(answer)}, sha256 {digest}")
        self._evidence.count("audio fetched")
        return True

    def _ask(self, client: httpx.Client, method: str, path: str, **options: Any) -> httpx.Response | None:
        """The answer; None where it was lost."""
        try:
            answer = client.request(method, path, **options)
        except httpx.HTTPError as error:
            self._evidence.count(f"{method} without an answer: {type(error).__name__}")
            return None
        if answer.status_code >= 400:
            self._evidence.count(f"{method} answered {answer.status_code}")
        if answer.status_code == 500 and answer.url.host + str(answer.url.port) in self._address:
            self._evidence.complain(f"{method} {path} was answered {_told(answer)}")
        return answer


def _told(answer: httpx.Response) -> str:
    return f"{answer.status_code} {answer.text[:200]!r}"
