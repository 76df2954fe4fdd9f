"""The API dies at the worst moment, or its clients behave badly, or many come at once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from api_processes import ApiProcess, lives, run_api
from promises import Promises
from servers import S3Server, wait_until
from soak.proxy import proxy_to
from workers import Desk, assert_speaks, run_worker

from worker.jobs import names
from worker.jobs.models import Status


def test_killed_between_record_and_answer(
    desk: Desk, promises: Promises, environment: dict[str, str], tmp_path: Path
) -> None:
    """Nobody has answered the client, but the job is there and announced; a repeated call gets the same one."""
    submission, body = promises.draft("I was recorded.", key="once")
    call: dict[str, Any] = {"json": body, "headers": {"Idempotency-Key": "once"}, "timeout": 30}
    messages = names.message_list_key(desk.settings.redis_prefix, "interactive")
    with run_api(environment, tmp_path) as api, proxy_to(api.url) as proxy:
        proxy.lose_answers(1)
        with pytest.raises(httpx.TransportError):
            httpx.post(f"http://127.0.0.1:{proxy.port}/v1/jobs", **call)
        master = psutil.Process(api.process.pid)
        for process in [master, *master.children()]:
            process.kill()
    [(job_id, _)] = desk.redis.zrange(names.due_key(desk.settings.redis_prefix, "interactive"), 0, -1, withscores=True)
    assert desk.record(job_id).status is Status.QUEUED
    assert desk.redis.llen(messages) == 1
    with run_api(environment, tmp_path) as api, run_worker(environment, tmp_path / "worker.log"):
        again = httpx.post(f"{api.url}/v1/jobs", **call)
        assert (again.status_code, again.json()["id"]) == (202, job_id)
        promises.accept(job_id, submission)
        assert promises.assert_kept() == {"succeeded": 1}


NEVER_READ = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20_000
NEVER_SENT = (
    b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
)
NEVER_ASKED = b"GET /livez HTTP/1.1\r\nHost: local"


NUM_THREADS = 2


@pytest.fixture(scope="module")
def narrow_api(redis_url: str, s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    """An API of few threads and little patience."""
    variables = {
        "OMNIVOICE_REDIS_URL": redis_url,
        "OMNIVOICE_REDIS_PREFIX": "narrow",
        "OMNIVOICE_S3_PREFIX": "narrow",
        "OMNIVOICE_API_THREADS": str(NUM_THREADS),
        "OMNIVOICE_API_CLIENT_SECONDS": "1",
    }
    with run_api({**os.environ, **s3.environment, **variables}, tmp_path_factory.mktemp("narrow")) as api:
        yield api


@pytest.mark.parametrize("sent", [[NEVER_READ] * NUM_THREADS, [NEVER_SENT, NEVER_ASKED]], ids=["read", "send the rest"])
def test_clients_that_never(sent: list[bytes], narrow_api: ApiProcess) -> None:
    """They hold all threads, and others are served nevertheless, a little later."""
    url = narrow_api.url
    with contextlib.ExitStack() as clients:
        for data in sent:
            client = clients.enter_context(socket.create_connection(("127.0.0.1", urlsplit(url).port), timeout=0.3))
            with contextlib.suppress(TimeoutError):
                client.sendall(data)
        wait_until(lambda: not answers_quickly(url), what="no thread to be free")
        wait_until(lambda: lives(url), 8, "a free thread")
        assert httpx.post(f"{url}/v1/jobs", json={"text": "I read and write."}).status_code == 202
    assert not [line for line in narrow_api.lines() if line["level"] in ("warning", "error")]


def answers_quickly(url: str) -> bool:
    with contextlib.suppress(httpx.ReadTimeout):
        return httpx.get(f"{url}/livez", timeout=0.3).status_code == 200
    return False


def test_two_hundred_clients_at_once_get_each_its_own_audio(
    promises: Promises, environment: dict[str, str], tmp_path: Path
) -> None:
    num_clients = 200
    drafts = [promises.draft(f"Passenger number {index}, please come to the desk.") for index in range(num_clients)]

    def be_served(draft: int) -> None:
        submission, body = drafts[draft]
        with httpx.Client(base_url=api.url, timeout=60, follow_redirects=True, verify=False) as client:
            accepted = client.post("/v1/jobs", json=body)
            assert accepted.status_code == 202, accepted.text
            promises.accept(accepted.json()["id"], submission)
            location = accepted.headers["Location"]
            answer = client.get(location, headers={"Prefer": "wait=30"})
            while (job := answer.json())["status"] in ("queued", "running"):
                time.sleep(int(answer.headers["Retry-After"]))  # half of the threads hold long polls, no more
                answer = client.get(location, headers={"Prefer": "wait=30"})
            data = client.get(f"{location}/audio").content
        assert hashlib.sha256(data).hexdigest() == job["result"]["sha256"]
        assert_speaks(data, submission.text)

    with run_api(environment, tmp_path) as api, run_worker(environment, tmp_path / "worker.log"):
        with ThreadPoolExecutor(num_clients) as pool:
            list(pool.map(be_served, range(num_clients)))
        assert promises.assert_kept() == {"succeeded": num_clients}
