"""Clients of the product as a benchmark needs them: they call, wait and fetch, and note when what happened."""

from __future__ import annotations

import datetime
import hashlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from worker.jobs.models import Status

WAIT_SECONDS = 20
JOB_SECONDS = 120.0
"""A client that has waited this long for one job gives it up."""
PARTS = ("accepted", "ended", "told", "fetched")


class CallFailed(Exception):
    """The service answered what it must not, or not at all; one line."""


class Caller:
    """A client's connections, kept open, one to each server. For one thread."""

    def __init__(self) -> None:
        self._connections: dict[str, http.client.HTTPConnection] = {}

    def call(
        self, method: str, url: str, body: object = None, **headers: str
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Status, headers and body. Raises `CallFailed` for an error's status, or where nobody answers."""
        parts = urlsplit(url)
        data = None if body is None else json.dumps(body).encode()
        headers |= {} if data is None else {"Content-Type": "application/json"}
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        for is_last in (parts.netloc not in self._connections, True):
            connection = self._connections.setdefault(
                parts.netloc, http.client.HTTPConnection(parts.netloc, timeout=90)
            )
            try:
                connection.request(method, target, data, headers)
                response = connection.getresponse()
                content = response.read()
                break
            except (http.client.HTTPException, OSError) as error:
                connection.close()
                # A connection that was kept open may have been closed by the other side: that is tried once more.
                if is_last or not isinstance(error, (http.client.RemoteDisconnected, ConnectionResetError)):
                    raise CallFailed(f"{method} {parts.path}: {error or type(error).__name__}") from None
        if response.status >= 400:
            raise CallFailed(f"{method} {parts.path}: {response.status} {content[:200].decode(errors='replace')}")
        return response.status, response.headers, content

    def job(self, url: str, wait: int) -> tuple[dict[str, Any], float | None]:
        """The job as the API tells it, and the seconds to pause where it would not hold a long poll."""
        _, headers, content = self.call("GET", url, Prefer=f"wait={wait}")
        is_declined = "Preference-Applied" not in headers
        return json.loads(content), float(headers.get("Retry-After", 0)) if is_declined else None

    def audio(self, url: str, result: Mapping[str, Any]) -> None:
        """Fetch a job's audio through the redirect. Raises `CallFailed` where it is not what the record tells."""
        status, headers, _ = self.call("GET", url)
        content = self.call("GET", headers["Location"])[2] if status == 302 else b""
        if (len(content), hashlib.sha256(content).hexdigest()) != (result["bytes"], result["sha256"]):
            raise CallFailed(f"{url}: {status}, {len(content)} bytes that are not those of the record")


@dataclass(frozen=True, slots=True)
class Visit:
    """A job as its client saw it: seconds since 1970, and the API's last answer about it."""

    began: float
    accepted: float
    told: float
    fetched: float
    num_declined: int
    job: dict[str, Any]

    def parts_ms(self) -> dict[str, float]:
        """Milliseconds until the 202; until the job had ended; until the client knew; until it had the audio.

        `added` is what there was from the submission to the job's end beside the synthesizer's own time, `queue` the
        same without the upload.
        """
        ended = datetime.datetime.fromisoformat(self.job["finished_at"]).timestamp()
        moments = (self.began, self.accepted, ended, self.told, self.fetched)
        parts = {name: (b - a) * 1e3 for name, a, b in zip(PARTS, moments, moments[1:], strict=False)}
        timings = self.job["result"]["timings"]
        added = (ended - self.began) * 1e3 - timings["generated_ms"] - timings["decoded_ms"]
        total = (self.fetched - self.began) * 1e3
        return {"total": total, **parts, "added": added, "queue": added - timings["uploaded_ms"]}


@dataclass(slots=True)
class Loop:
    """A closed loop: so many clients, each of which begins its next job when it has the last one's audio."""

    address: str
    body_of: Callable[[int], dict[str, Any]]
    visits: list[Visit] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def run(self, clients: int, seconds: float) -> None:
        until = time.time() + seconds
        # Daemons: an interrupt of the main thread does not wait for their long polls.
        threads = [threading.Thread(target=self._serve, args=[n, until], daemon=True) for n in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _serve(self, number: int, until: float) -> None:
        caller = Caller()
        index = number
        while time.time() < until:
            try:
                self.visits.append(self._visit(caller, index))
            except CallFailed as error:
                self.failures.append(str(error))
                time.sleep(0.1)
            index += 1

    def _visit(self, caller: Caller, index: int) -> Visit:
        began = time.time()
        _, headers, _ = caller.call("POST", f"{self.address}/v1/jobs", self.body_of(index))
        accepted = time.time()
        url = self.address + headers["Location"]
        num_declined = 0
        while True:
            job, pause = caller.job(url, WAIT_SECONDS)
            if Status(job["status"]).is_final:
                break
            if time.time() > began + JOB_SECONDS:
                raise CallFailed(f"{job['id']} is {job['status']} after {JOB_SECONDS:.0f} s")
            if pause is not None:
                num_declined += 1
                time.sleep(pause)
        told = time.time()
        if job["status"] != Status.SUCCEEDED:
            raise CallFailed(f"{job['id']} {job['status']}: {(job['error'] or {}).get('detail')}")
        caller.audio(self.address + job["links"]["audio"], job["result"])
        return Visit(began, accepted, told, time.time(), num_declined, job)
