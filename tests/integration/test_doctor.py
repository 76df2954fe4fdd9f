"""`python -m worker doctor` on real servers: it finds what is wrong, says what to do, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from redis import Redis
from servers import S3Server, free_ports, run_redis, s3_client
from workers import REPOSITORY

from worker.doctor.findings import Finding, Level
from worker.doctor.object_store import check_storage
from worker.doctor.redis_server import check_redis
from worker.jobs.settings import Settings

KEEPS = ("--appendonly", "yes", "--appendfsync", "everysec")


def by_subject(findings: Sequence[Finding]) -> dict[str, Finding]:
    for finding in findings:
        assert "\n" not in finding.text + finding.remedy
        assert bool(finding.remedy) == (finding.level is not Level.OK), finding
    return {finding.subject: finding for finding in findings}


def wrong(findings: Sequence[Finding]) -> dict[str, Level]:
    return {subject: finding.level for subject, finding in by_subject(findings).items() if finding.remedy}


def doctor(environment: dict[str, str], *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    variables = {f"OMNIVOICE_{name.upper()}": str(value) for name, value in settings.items()}
    return subprocess.run(
        [sys.executable, "-m", "worker", "doctor", *arguments],
        cwd=REPOSITORY,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def objects(server: S3Server) -> set[str]:
    with contextlib.closing(s3_client(server)) as client:
        return {item["Key"] for item in client.list_objects_v2(Bucket=server.bucket).get("Contents", [])}


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.redis
def test_a_sound_service_with_the_demo_voice(environment: dict[str, str], s3: S3Server, tmp_path: Path) -> None:
    before = objects(s3)
    model = REPOSITORY / "checkpoints" / "demo"
    with run_redis(tmp_path, None, *KEEPS) as url:
        found = doctor(environment, synthesizer="engine", model=model, device="cpu", redis_url=url)
        with Redis.from_url(url) as redis:
            assert redis.dbsize() == 0
    assert (found.returncode, found.stderr) == (0, ""), found.stdout
    assert found.stdout.splitlines()[-1] == "errors: 0, warnings: 0"
    for subject in ("append-only file", "conditional write", "presigned link", "weights", "audio tokenizer", "clock"):
        assert f"  ok       {subject} " in found.stdout
    assert objects(s3) == before


def test_what_is_wrong_is_told_with_what_to_do(environment: dict[str, str]) -> None:
    """The tests' own Redis keeps nothing; there is neither such a folder nor a GPU."""
    found = doctor(environment, synthesizer="engine", model="/nowhere/model", device="cuda:7")
    assert found.returncode == 1
    assert "ERROR    append-only file" in found.stdout
    assert "→ set `appendonly yes`" in found.stdout
    assert "ERROR    checkpoint         /nowhere/model: no such folder" in found.stdout
    assert "ERROR    device" in found.stdout
    assert found.stdout.splitlines()[-1] == "errors: 3, warnings: 0"
    assert environment["AWS_SECRET_ACCESS_KEY"] not in found.stdout + found.stderr


@pytest.mark.redis
def test_an_api_needs_no_model(environment: dict[str, str], redis_url: str, tmp_path: Path) -> None:
    with run_redis(tmp_path, None, *KEEPS, "--requirepass", "hush-hush") as url:
        secret = url.replace("redis://", "redis://:hush-hush@")
        found = doctor(environment, "--for", "api", synthesizer="engine", model="/nowhere", redis_url=secret)
    assert found.returncode == 0, found.stdout
    assert "model" not in found.stdout.splitlines()
    assert "hush-hush" not in found.stdout + found.stderr


def test_a_bad_setting_is_named(environment: dict[str, str]) -> None:
    found = doctor(environment, mode="batch")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("OMNIVOICE_MODE: ")


# -- Redis -------------------------------------------------------------------------------------------------------------


@pytest.mark.redis
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (KEEPS, {}),
        (("--appendonly", "yes", "--appendfsync", "always"), {}),
        ((), {"append-only file": Level.ERROR}),
        (("--appendonly", "yes", "--appendfsync", "no"), {"appendfsync": Level.ERROR}),
        ((*KEEPS, "--maxmemory-policy", "allkeys-lru"), {"eviction": Level.ERROR}),
        ((*KEEPS, "--maxmemory-policy", "volatile-lru"), {"eviction": Level.WARNING}),
        ((*KEEPS, "--maxmemory", "1"), {"writes": Level.ERROR, "memory": Level.WARNING}),
        ((*KEEPS, "--rename-command", "CONFIG", ""), {"appendfsync": Level.WARNING}),
        ((*KEEPS, "--cluster-enabled", "yes"), {"writes": Level.ERROR, "cluster": Level.ERROR}),
        ((*KEEPS, "--replicaof", "127.0.0.1 1"), {"writes": Level.ERROR}),
    ],
    ids=["everysec", "always", "no-aof", "no-fsync", "allkeys", "volatile", "full", "managed", "cluster", "replica"],
)
def test_redis_as_it_is_set(
    options: tuple[str, ...], expected: dict[str, Level], redis_url: str, tmp_path: Path
) -> None:
    with run_redis(tmp_path, None, *options) as url:
        findings = check_redis(Settings(redis_url=url))
        with Redis.from_url(url) as redis:
            assert redis.dbsize() == 0
    assert wrong(findings) == expected, findings


@pytest.mark.redis
def test_redis_that_asks_for_a_password(redis_url: str, tmp_path: Path) -> None:
    with run_redis(tmp_path, None, *KEEPS, "--requirepass", "right") as url:
        for login in ("", ":wrong-word@"):
            findings = check_redis(Settings(redis_url=url.replace("//", f"//{login}")))
            assert wrong(findings) == {"connection": Level.ERROR}
            assert "wrong-word" not in str(findings)
        findings = check_redis(Settings(redis_url=url.replace("//", "//:right@")))
        assert wrong(findings) == {}
        assert by_subject(findings)["password"].text == "asked for"
        with Redis.from_url(url.replace("//", "//:right@")) as redis:
            redis.acl_setuser("narrow", enabled=True, passwords=["+word"], categories=["+@read"], keys=["*"])
        findings = check_redis(Settings(redis_url=url.replace("//", "//narrow:word@")))
        assert wrong(findings) == {"permissions": Level.ERROR}


def test_no_redis() -> None:
    assert wrong(check_redis(Settings(redis_url="redis://127.0.0.1:1/0"))) == {"connection": Level.ERROR}


@pytest.mark.redis
def test_tls_that_the_server_does_not_speak(redis_url: str) -> None:
    findings = check_redis(Settings(redis_url=redis_url.replace("redis://", "rediss://")))
    assert wrong(findings) == {"connection": Level.ERROR}
    assert "rediss://" in findings[0].remedy


# -- the object store --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("update", "named"),
    [
        ({"s3_bucket": "no-such-bucket"}, "no-such-bucket"),
        ({"s3_endpoint": "http://127.0.0.1:1"}, "127.0.0.1:1"),
        ({"s3_region": "not a region"}, "region"),
    ],
)
def test_a_store_that_cannot_be_used(settings: Settings, update: dict[str, str], named: str) -> None:
    findings = check_storage(settings.model_copy(update=update))
    assert wrong(findings) == {"bucket": Level.ERROR}
    assert named in findings[0].text


def test_wrong_credentials(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    findings = check_storage(settings)
    assert wrong(findings) == {"bucket": Level.ERROR}
    assert "wrong-secret" not in str(findings)


def test_an_address_for_clients_that_does_not_answer_here(settings: Settings, s3: S3Server) -> None:
    before = objects(s3)
    [port] = free_ports(1)
    findings = check_storage(settings.model_copy(update={"s3_public_endpoint": f"http://127.0.0.1:{port}"}))
    assert wrong(findings) == {"presigned link": Level.WARNING}
    assert objects(s3) == before


class _OpenHouse(BaseHTTPRequestHandler):
    """Gives anything to anyone, and is three hours late."""

    def do_GET(self) -> None:
        late = format_datetime(datetime.now(UTC) - timedelta(hours=3), usegmt=True)
        self.send_response_only(200)
        self.send_header("Date", late)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing to standard error."""


@pytest.fixture
def open_house() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _OpenHouse) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_links_that_lead_elsewhere_no_privacy_and_a_wrong_clock(
    settings: Settings, s3: S3Server, open_house: str
) -> None:
    before = objects(s3)
    findings = check_storage(settings.model_copy(update={"s3_public_endpoint": open_house}))
    assert wrong(findings) == {"presigned link": Level.ERROR, "privacy": Level.WARNING, "clock": Level.ERROR}
    assert by_subject(findings)["clock"].text.startswith("the store's clock is 1080")
    assert objects(s3) == before
