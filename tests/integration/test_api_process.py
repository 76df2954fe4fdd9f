"""`python -m api` as a process of its own: its checks, its answers over real HTTP, its end. Torch is in none of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from api_processes import lives as _lives
from api_processes import run_api as _run_api
from api_service import AUDIO, REF_TEXT, clip, succeed_job
from gate import gate_to
from redis import Redis
from servers import free_ports, wait_until

from worker.jobs.settings import Settings


def _fail_to_start(environment: dict[str, str], *named: str) -> None:
    """The process must end with status 2 and one line that holds each of `named`."""
    ended = subprocess.run(
        [sys.executable, "-m", "api"],
        env={"OMNIVOICE_API_PORT": str(free_ports(1)[0]), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    for word in named:
        assert word in ended.stderr


# -- checks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"OMNIVOICE_API_PROT": "8080"}, ["OMNIVOICE_API_PROT", "did you mean OMNIVOICE_API_PORT"]),
        ({"OMNIVOICE_API_PORT": "eighty"}, ["OMNIVOICE_API_PORT"]),
        ({"OMNIVOICE_API_HOST": "0.0.0.0"}, ["OMNIVOICE_API_HOST", "OMNIVOICE_API_KEYS_FILE", "OMNIVOICE_INSECURE=1"]),
        ({"OMNIVOICE_API_KEYS_FILE": "/nowhere/keys.json"}, ["OMNIVOICE_API_KEYS_FILE", "/nowhere/keys.json"]),
        ({"OMNIVOICE_CORS_ORIGINS": "*"}, ["OMNIVOICE_CORS_ORIGINS"]),
        ({"OMNIVOICE_REDIS_URL": "redis://:hunter2@127.0.0.1:1/0"}, ["Redis", "127.0.0.1:1"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_start_is_refused_before_any_server_is_needed(variables: dict[str, str], named: list[str]) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMNIVOICE_", "AWS_"))}
    _fail_to_start({**inherited, **variables}, *named)


def test_start_without_the_bucket(environment: dict[str, str]) -> None:
    _fail_to_start({**environment, "OMNIVOICE_S3_BUCKET": "no-such-bucket"}, "no-such-bucket", "does not exist")


def test_start_without_the_store(environment: dict[str, str]) -> None:
    _fail_to_start({**environment, "OMNIVOICE_S3_ENDPOINT": "http://127.0.0.1:1"}, "127.0.0.1:1", "cannot be reached")


def test_start_with_wrong_credentials(environment: dict[str, str]) -> None:
    _fail_to_start({**environment, "AWS_SECRET_ACCESS_KEY": "wrong"}, "credentials")


def test_start_on_a_taken_port(environment: dict[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        _fail_to_start({**environment, "OMNIVOICE_API_PORT": str(port)}, "OMNIVOICE_API_PORT", str(port), "in use")


def test_a_password_is_not_shown_when_redis_is_missing(environment: dict[str, str]) -> None:
    environment["OMNIVOICE_REDIS_URL"] = "redis://:hunter2@127.0.0.1:1/0"
    ended = subprocess.run([sys.executable, "-m", "api"], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "hunter2" not in ended.stderr


# -- keys --------------------------------------------------------------------------------------------------------------


def test_new_key_opens_the_service(environment: dict[str, str], tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "api", "new-key", "anna"], capture_output=True, text=True, timeout=60, check=True
    )
    key_line, entry_line = made.stdout.splitlines()
    token = key_line.split(": ", 1)[1]
    entry = json.loads(entry_line.split(": ", 1)[1])
    assert token not in entry_line
    keys_file = tmp_path / "keys.json"
    keys_file.write_text(json.dumps({"keys": [entry]}))
    variables = {"OMNIVOICE_API_KEYS_FILE": str(keys_file), "OMNIVOICE_API_HOST": "0.0.0.0"}
    with _run_api({**environment, **variables}, tmp_path) as api:
        assert httpx.post(f"{api.url}/v1/jobs", json={"text": "Hi there."}).status_code == 401
        headers = {"Authorization": f"Bearer {token}"}
        assert httpx.post(f"{api.url}/v1/jobs", json={"text": "Hi there."}, headers=headers).status_code == 202
        assert token not in api.log.read_text()


def test_new_key_refuses_a_bad_name() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "api", "new-key", "a b"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stdout == ""


# -- service -----------------------------------------------------------------------------------------------------------


def test_a_job_from_submission_to_audio(environment: dict[str, str], settings: Settings, tmp_path: Path) -> None:
    with _run_api(environment, tmp_path) as api, httpx.Client(base_url=api.url, timeout=30) as client:
        assert client.get("/readyz").json() == {"status": "ready"}
        submitted = client.post("/v1/jobs", json={"text": "The quick brown fox speaks privately."})
        assert submitted.status_code == 202
        location = submitted.headers["Location"]
        worker = threading.Timer(0.3, succeed_job, (settings, submitted.json()["id"]))
        worker.start()
        job = client.get(location, headers={"Prefer": "wait=20"})
        worker.join()
        assert job.json()["status"] == "succeeded"
        assert job.headers["Preference-Applied"] == "wait=20"
        assert client.get(f"{location}/audio", follow_redirects=True).content == AUDIO
        assert client.delete(location).status_code == 409

        parts = {
            "request": (None, json.dumps({"text": "Hi.", "ref_text": REF_TEXT})),
            "ref_audio": ("v.wav", clip(12.0, 44_100)),
        }
        assert client.post("/v1/jobs", files=parts).status_code == 202

        assert client.get("/openapi.json").json()["openapi"].startswith("3.1")
        assert client.get("/", follow_redirects=True).headers["Content-Type"].startswith("text/html")
        _assert_without_torch(api.process.pid)
    assert "quick brown fox" not in api.log.read_text()


def test_what_is_no_http_gets_a_problem_too(environment: dict[str, str], tmp_path: Path) -> None:
    no_http = {
        b"nonsense\r\n\r\n": 400,
        b"GET / HTTP/1.1\r\nHost: here\r\nhush hush: 1\r\n\r\n": 400,
        b"GET /%s HTTP/1.1\r\n\r\n" % (b"a" * 5_000): 414,
    }
    with _run_api(environment, tmp_path) as api:
        for sent, status in no_http.items():
            head, _, content = _answer_to(api.url, sent).partition(b"\r\n\r\n")
            lines = head.decode().splitlines()
            assert lines[0].split()[1] == str(status)
            assert "Content-Type: application/problem+json" in lines
            assert f"Content-Length: {len(content)}" in lines
            problem = json.loads(content)
            assert (problem["status"], problem["type"]) == (status, "about:blank")
            assert "hush" not in content.decode()


def _answer_to(url: str, sent: bytes) -> bytes:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as client:
        client.sendall(sent)
        return b"".join(iter(lambda: client.recv(65_536), b""))


def _assert_without_torch(pid: int) -> None:
    """Neither the arbiter nor a worker process has mapped a library of torch, though each may have imported it lazily
    while it served the calls before this one."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    assert len(processes) >= 2
    for process in processes:
        mapped = Path(f"/proc/{process.pid}/maps").read_text()
        assert "libpython" in mapped or "python" in mapped
        assert "torch" not in mapped


def test_importing_the_api_loads_no_torch() -> None:
    code = (
        "import sys, api.wsgi, api.__main__, api.app; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_jobs_expire_while_no_worker_is_there(environment: dict[str, str], tmp_path: Path) -> None:
    with _run_api(environment, tmp_path) as api, httpx.Client(base_url=api.url, timeout=30) as client:
        location = client.post("/v1/jobs", json={"text": "Too late.", "expires_in": 0.2}).headers["Location"]
        assert client.get(location, headers={"Prefer": "wait=20"}).json()["status"] == "expired"


def test_start_is_logged_with_settings_and_without_secrets(environment: dict[str, str], tmp_path: Path) -> None:
    with _run_api(environment, tmp_path) as api:
        httpx.post(f"{api.url}/v1/jobs", json={"text": "Hi there."}, headers={"Authorization": "Bearer s3cr3t"})
    lines = api.lines()
    start = next(line for line in lines if line["event"] == "starting")
    assert start["address"] == api.url
    assert isinstance(start["settings"], dict)
    assert start["settings"]["OMNIVOICE_REDIS_URL"] == environment["OMNIVOICE_REDIS_URL"]
    assert any(line["event"] == "request" and line["status"] == 202 for line in lines)
    text = api.log.read_text()
    assert environment["AWS_SECRET_ACCESS_KEY"] not in text
    assert "s3cr3t" not in text


def test_too_large_without_a_length(environment: dict[str, str], tmp_path: Path) -> None:
    def body() -> Iterator[bytes]:
        yield b'{"text": "'
        for _ in range(64):
            yield b"a" * 1024
        yield b'"}'

    with _run_api({**environment, "OMNIVOICE_MAX_REQUEST_BYTES": "16384"}, tmp_path) as api:
        answer = httpx.post(f"{api.url}/v1/jobs", content=body(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_sigterm_ends_long_polls_and_the_process(
    environment: dict[str, str], redis_client: Redis, tmp_path: Path
) -> None:
    with _run_api(environment, tmp_path) as api:
        location = httpx.post(f"{api.url}/v1/jobs", json={"text": "Hi there."}).headers["Location"]
        answers: list[httpx.Response] = []

        def poll() -> None:
            answers.append(httpx.get(f"{api.url}{location}", headers={"Prefer": "wait=60"}, timeout=70))

        waiting = threading.Thread(target=poll)
        looks_before = _num_looks(redis_client)
        waiting.start()
        wait_until(lambda: _num_looks(redis_client) >= looks_before + 3, what="the long poll")
        started = time.monotonic()
        api.process.send_signal(signal.SIGTERM)
        waiting.join(30)
        assert api.process.wait(30) == 0
        assert time.monotonic() - started < 15
        assert [(answer.status_code, answer.json()["status"]) for answer in answers] == [(200, "queued")]


def test_an_outage_and_its_end_are_told_once_however_many_clients_wait(
    environment: dict[str, str], redis_client: Redis, tmp_path: Path
) -> None:
    num_clients = 8
    port = urlsplit(environment["OMNIVOICE_REDIS_URL"]).port
    assert port is not None
    with (
        gate_to(port) as gate,
        _run_api({**environment, "OMNIVOICE_REDIS_URL": f"redis://127.0.0.1:{gate.port}/0"}, tmp_path) as api,
        ThreadPoolExecutor(num_clients) as pool,
    ):
        location = httpx.post(f"{api.url}/v1/jobs", json={"text": "Hi there."}).headers["Location"]

        def poll(_: int) -> int:
            return httpx.get(f"{api.url}{location}", headers={"Prefer": "wait=30"}, timeout=70).status_code

        looks_before = _num_looks(redis_client)
        waiting = [pool.submit(poll, index) for index in range(num_clients)]
        wait_until(lambda: _num_looks(redis_client) >= looks_before + 3 * num_clients, what="the long polls")
        gate.close()
        assert [future.result() for future in waiting] == [503] * num_clients
        assert httpx.get(f"{api.url}/readyz", timeout=30).status_code == 503
        assert BACK not in [line["event"] for line in api.lines()]
        gate.open()
        wait_until(lambda: BACK in [line["event"] for line in api.lines()], what="the line that Redis is back")
        assert httpx.post(f"{api.url}/v1/jobs", json={"text": "Hi again."}).status_code == 202
        rounds_before = _num_rounds(redis_client)
        wait_until(lambda: _num_rounds(redis_client) >= rounds_before + 4, what="rounds in which Redis answers")
        warnings = [line["event"] for line in api.lines() if line["level"] == "warning"]
        assert [line["event"] for line in api.lines()].count(BACK) == 1
    assert len(warnings) == 1, warnings
    assert "Redis" in str(warnings[0])


BACK = "Redis answers again"


def _num_rounds(redis: Redis) -> int:
    """How often a reconciler has looked since Redis started, about: each time it sets a name that is there already."""
    return int(redis.info("commandstats")["cmdstat_set"]["calls"])


def _num_looks(redis: Redis) -> int:
    """How often a job was read since Redis started: a long poll reads its job again and again."""
    return int(redis.info("commandstats").get("cmdstat_hgetall", {"calls": 0})["calls"])


def test_killed_api_can_be_started_again_while_a_client_sends(environment: dict[str, str], tmp_path: Path) -> None:
    """Its gunicorn worker waits for the rest of a body, which it is not to do for as long as the client likes."""
    port = free_ports(1)[0]
    with _run_api(environment, tmp_path, port) as api:
        orphans = psutil.Process(api.process.pid).children()
        assert orphans
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n")
            client.sendall(b"Content-Type: application/json\r\n\r\n{")
            wait_until(lambda: _lives(api.url), what="an answer that was asked for after the body's start")
            api.process.kill()
            api.process.wait(5)
            with _run_api(environment, tmp_path, port) as again:
                assert _lives(again.url)
                assert psutil.wait_procs(orphans, timeout=5)[1] == []


def test_killed_api_can_be_started_again_at_once(environment: dict[str, str], tmp_path: Path) -> None:
    """kill -9 of the process that was started; its gunicorn worker, busy with a client, must not keep the port."""
    port = free_ports(1)[0]
    over = threading.Event()

    def poll(url: str) -> None:
        with httpx.Client(base_url=url, timeout=5) as client, contextlib.suppress(httpx.TransportError):
            while not over.wait(0.05):
                client.get("/livez")

    with _run_api(environment, tmp_path, port) as api:
        client = threading.Thread(target=poll, args=(api.url,))
        client.start()
        orphans = psutil.Process(api.process.pid).children()
        assert orphans
        api.process.kill()
        api.process.wait(5)
        try:
            psutil.wait_procs(orphans, timeout=10)
            assert not any(orphan.is_running() for orphan in orphans)
            with _run_api(environment, tmp_path, port) as again:
                assert _lives(again.url)
        finally:
            over.set()
            client.join(10)
