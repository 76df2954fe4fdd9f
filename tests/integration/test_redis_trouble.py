"""Redis, or the way to it, fails while the service runs: said, worked on afterwards, and no accepted job is lost."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from api_service import assert_problem, build_app
from promises import Promises
from redis import Redis
from redis.exceptions import ResponseError
from servers import S3Server, run_redis, wait_until
from soak.proxy import Proxy
from workers import Desk, assert_speaks, run_worker

from worker.jobs import connection
from worker.jobs.models import Status
from worker.jobs.reconciler import Reconciler
from worker.jobs.settings import Settings


@pytest.fixture
def own_redis(redis_url: str, tmp_path: Path) -> Iterator[Redis]:
    """A server of the test's own, with a connection that lasts (`redis_url` skips where there is no Redis)."""
    folder = tmp_path / "redis"
    folder.mkdir()
    with run_redis(folder) as url, Redis.from_url(url, single_connection_client=True, decode_responses=True) as redis:
        redis.ping()
        yield redis


@pytest.fixture
def desk(settings: Settings, own_redis: Redis, environment: dict[str, str]) -> Iterator[Desk]:
    port = own_redis.connection_pool.connection_kwargs["port"]
    environment["OMNIVOICE_REDIS_URL"] = f"redis://127.0.0.1:{port}/0"
    desk = Desk(settings.model_copy(update={"redis_url": environment["OMNIVOICE_REDIS_URL"]}))
    yield desk
    desk.close()


# A worker whose patience with Redis is a tenth: all times of a test can then be a tenth.
HASTY_WORKER = """
import os, sys
from worker.jobs import connection

connection.SOCKET_TIMEOUT_SECONDS /= 10
connection.CONNECT_TIMEOUT_SECONDS /= 10
connection.HEALTH_CHECK_SECONDS /= 10
from worker.__main__ import main

sys.exit(main(os.environ))
"""
LEASE_SECONDS = 15.0
SOCKET_SECONDS = connection.SOCKET_TIMEOUT_SECONDS
CONNECT_SECONDS = connection.CONNECT_TIMEOUT_SECONDS
ANSWER_SECONDS = connection.ANSWER_SECONDS
BUSY_SECONDS = 1.5
"""What a machine with other things to do may take besides."""


@pytest.mark.parametrize("scale", [10, pytest.param(1, marks=pytest.mark.soak)])
def test_a_redis_that_freezes_for_forty_seconds(
    scale: int,
    desk: Desk,
    own_redis: Redis,
    promises: Promises,
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Longer than a lease, than a command's patience with all its repetitions, and than any client would wait."""
    monkeypatch.setattr(connection, "SOCKET_TIMEOUT_SECONDS", SOCKET_SECONDS / scale)
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_SECONDS", CONNECT_SECONDS / scale)
    monkeypatch.setattr(connection, "ANSWER_SECONDS", ANSWER_SECONDS / scale)
    client = build_app(desk.settings).test_client()
    submission, body = promises.draft("Is anybody there?", key="frozen")
    program = ("-c", HASTY_WORKER) if scale == 10 else ("-m", "worker")
    settings = {"tone_window_ms": 400, "max_batch_requests": 2, "lease_seconds": LEASE_SECONDS / scale}
    with run_worker(environment, tmp_path / "worker.log", program, **settings) as worker:
        ids = [promises.submit(f"Number {index}.") for index in range(6)]
        desk.wait_for(ids[0], Status.RUNNING)
        process_id = int(own_redis.info("server")["process_id"])
        os.kill(process_id, signal.SIGSTOP)
        began = time.monotonic()
        try:
            answer = client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "frozen"})
            assert_problem(answer, 503)
            assert time.monotonic() - began < 2 * ANSWER_SECONDS / scale + BUSY_SECONDS, "told before it gives up"
            wait_until(lambda: worker.has_logged("heartbeat failed"), 60 / scale, what="a missed heartbeat")
            time.sleep(max(0.0, began + 40 / scale - time.monotonic()))
        finally:
            os.kill(process_id, signal.SIGCONT)
        again = client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "frozen"})
        assert again.status_code == 202, again.text
        promises.accept(again.get_json()["id"], submission)
        assert promises.assert_kept(60) == {"succeeded": 7}
        assert worker.process.poll() is None


def test_who_asks_for_readiness_is_told_of_a_frozen_redis_in_time(desk: Desk, own_redis: Redis) -> None:
    """Before a load balancer gives its probe up; and each time, with connections in the pool or without."""
    client = build_app(desk.settings).test_client()
    assert client.get("/readyz").status_code == 200
    process_id = int(own_redis.info("server")["process_id"])
    os.kill(process_id, signal.SIGSTOP)
    try:
        for _ in range(2):
            began = time.monotonic()
            assert_problem(client.get("/readyz"), 503, "redis")
            assert time.monotonic() - began < connection.PROBE_SECONDS + 1
        began = time.monotonic()
        assert client.get("/livez").status_code == 200
        assert time.monotonic() - began < 1
    finally:
        os.kill(process_id, signal.SIGCONT)
    assert client.get("/readyz").status_code == 200


@pytest.mark.parametrize("how", ["idle", "just used"])
def test_who_submits_is_told_of_a_frozen_redis_in_time(
    how: str, desk: Desk, own_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By way of a connection that is asked first whether it is well, or not, and then of a new one: two tries."""
    answer_seconds = 0.5
    monkeypatch.setattr(connection, "ANSWER_SECONDS", answer_seconds)
    monkeypatch.setattr(connection, "HEALTH_CHECK_SECONDS", 0.001 if how == "idle" else 60)
    client = build_app(desk.settings).test_client()
    assert client.post("/v1/jobs", json={"text": "Before."}).status_code == 202
    process_id = int(own_redis.info("server")["process_id"])
    os.kill(process_id, signal.SIGSTOP)
    try:
        for _ in range(2):
            began = time.monotonic()
            assert_problem(client.post("/v1/jobs", json={"text": "Meanwhile."}), 503)
            assert 2 * answer_seconds < time.monotonic() - began < 2 * answer_seconds + BUSY_SECONDS / 2
    finally:
        os.kill(process_id, signal.SIGCONT)
    assert client.post("/v1/jobs", json={"text": "After."}).status_code == 202


def test_a_submission_over_half_open_connections_is_taken(
    desk: Desk, own_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.5)
    with contextlib.closing(Proxy(own_redis.connection_pool.connection_kwargs["port"])) as proxy:
        settings = desk.settings.model_copy(update={"redis_url": f"redis://127.0.0.1:{proxy.port}/0"})
        client = build_app(settings).test_client()
        assert client.post("/v1/jobs", json={"text": "Before."}).status_code == 202
        proxy.forget_all()
        wait_until(lambda: proxy.num_struck, what="a connection that is kept")
        assert client.post("/v1/jobs", json={"text": "After."}).status_code == 202


@pytest.mark.parametrize("how", ["reset", "half-open"])
def test_connections_that_break_or_go_silent(
    how: str, desk: Desk, own_redis: Redis, promises: Promises, environment: dict[str, str], tmp_path: Path
) -> None:
    """All that a worker holds, once while it is idle and once while it works."""
    with contextlib.closing(Proxy(own_redis.connection_pool.connection_kwargs["port"])) as proxy:
        break_all = proxy.reset_all if how == "reset" else proxy.forget_all
        settings = {"redis_url": f"redis://127.0.0.1:{proxy.port}/0", "tone_window_ms": 300, "lease_seconds": 1.5}
        with run_worker(environment, tmp_path / "worker.log", ("-c", HASTY_WORKER), **settings) as worker:
            assert promises.submit("Before.")
            promises.assert_kept()
            break_all()
            first = promises.submit("After the first.")
            desk.wait_for(first, Status.RUNNING)
            break_all()
            assert promises.submit("After the second.")
            began = time.monotonic()
            assert promises.assert_kept() == {"succeeded": 3}
            assert time.monotonic() - began < 12, "patience with Redis and a lease, on a busy machine"
            assert worker.process.poll() is None
        assert proxy.num_struck >= 4


@contextlib.contextmanager
def durable_redis(
    settings: Settings, folder: Path, append_fsync: str
) -> Iterator[tuple[Desk, Callable[[], None], Callable[[], None]]]:
    """A desk at a Redis that keeps its data in a file; what kills that server, and what starts it again."""
    folder.mkdir()
    options = ("--appendonly", "yes", "--appendfsync", append_fsync)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(contextlib.ExitStack())
        url = server.enter_context(run_redis(folder, None, *options))
        desk = Desk(settings.model_copy(update={"redis_url": url}))
        stack.callback(desk.close)

        def start_again() -> None:
            server.enter_context(run_redis(folder, desk.redis.connection_pool.connection_kwargs["port"], *options))

        yield desk, server.close, start_again  # by SIGKILL


def test_a_redis_killed_and_started_again_with_its_file(
    settings: Settings, environment: dict[str, str], s3: S3Server, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        desk, kill, start_again = stack.enter_context(durable_redis(settings, tmp_path / "durable", "everysec"))
        promises = Promises(desk, s3)
        limits = {"tone_window_ms": 300, "max_batch_requests": 2, "redis_url": desk.settings.redis_url}
        worker = stack.enter_context(run_worker(environment, tmp_path / "worker.log", **limits))
        ids = [promises.submit(f"Number {index}.") for index in range(8)]
        desk.wait_for(ids[0], Status.RUNNING)
        kill()
        start_again()
        assert promises.assert_kept(60) == {"succeeded": 8}
        assert worker.process.poll() is None
        assert not worker.has_logged("Redis has lost its data")


def test_what_is_done_when_redis_is_back_after_more_than_a_lease_counts(
    settings: Settings, environment: dict[str, str], s3: S3Server, tmp_path: Path
) -> None:
    """No lease could be extended meanwhile: all have lapsed. A reconciler that starts then must not take them away."""
    lease_seconds = 1.5
    settings = settings.model_copy(update={"lease_seconds": lease_seconds})
    with contextlib.ExitStack() as stack:
        desk, kill, start_again = stack.enter_context(durable_redis(settings, tmp_path / "durable", "always"))
        promises = Promises(desk, s3)
        limits = {"tone_window_ms": 400, "max_batch_requests": 2, "lease_seconds": lease_seconds}
        limits |= {"redis_url": desk.settings.redis_url}
        program = ("-c", HASTY_WORKER)
        worker = stack.enter_context(run_worker(environment, tmp_path / "worker.log", program, **limits))
        ids = [promises.submit("The first."), promises.submit("The second.")]
        desk.wait_for(ids[0], Status.RUNNING)
        desk.wait_for(ids[1], Status.RUNNING)
        kill()
        away_since = time.monotonic()
        wait_until(lambda: [line["event"] for line in worker.lines()].count("uploaded") == 2, 10, "both uploads")
        wait_until(lambda: time.monotonic() - away_since > 2 * lease_seconds, 10, "all leases to lapse")
        start_again()
        assert Reconciler(desk.ledger, lambda *_: True, lease_seconds).reconcile() == 0
        assert promises.assert_kept() == {"succeeded": 2}
        assert [desk.record(job_id).attempts for job_id in ids] == [1, 1]
        assert worker.process.poll() is None


def test_a_redis_whose_disk_is_full_takes_no_job_and_loses_none(
    settings: Settings, environment: dict[str, str], s3: S3Server, tmp_path: Path
) -> None:
    """A file that may not grow is to it what a full disk is: no write to it succeeds."""
    folder = tmp_path / "full"
    folder.mkdir()
    with (
        run_redis(folder, None, "--appendonly", "yes") as url,
        Redis.from_url(url) as redis,
        contextlib.closing(Desk(settings.model_copy(update={"redis_url": url}))) as desk,
    ):
        process_id = int(redis.info("server")["process_id"])
        unlimited = resource.prlimit(process_id, resource.RLIMIT_FSIZE)
        promises = Promises(desk, s3)
        client = build_app(desk.settings).test_client()
        limits = {"tone_window_ms": 300, "max_batch_requests": 2, "redis_url": url}
        with run_worker(environment, tmp_path / "worker.log", **limits) as worker:
            ids = [promises.submit(f"Number {index}.") for index in range(6)]
            desk.wait_for(ids[0], Status.RUNNING)
            resource.prlimit(process_id, resource.RLIMIT_FSIZE, (1, unlimited[1]))
            wait_until(lambda: not takes_writes(redis), what="a full disk")
            answer = client.post("/v1/jobs", json={"text": "No room for me."})
            assert_problem(answer, 503)
            assert int(answer.headers["Retry-After"]) > 0
            wait_until(lambda: worker.has_logged("heartbeat failed"), what="a refused write")
            resource.prlimit(process_id, resource.RLIMIT_FSIZE, unlimited)
            wait_until(lambda: takes_writes(redis), what="room on the disk")
            assert promises.assert_kept(60) == {"succeeded": 6}
            assert worker.process.poll() is None


def takes_writes(redis: Redis) -> bool:
    try:
        return bool(redis.set("a-key-of-the-test", "x"))
    except ResponseError:  # MISCONF
        return False


def test_a_flushed_redis_is_told_and_new_jobs_are_done(
    desk: Desk, own_redis: Redis, environment: dict[str, str], tmp_path: Path
) -> None:
    with run_worker(environment, tmp_path / "worker.log", tone_window_ms=2_000) as worker:
        desk.wait_for(desk.submit("I vanish."), Status.RUNNING)
        assert not worker.has_logged("Redis has lost its data")
        own_redis.flushall()
        wait_until(lambda: worker.has_logged("Redis has lost its data"), what="the loss to be told")
        [record] = desk.wait_ended([desk.submit("I am new.")])
        assert_speaks(desk.audio(record), "I am new.")
        assert sum(str(line["event"]).startswith("Redis has lost") for line in worker.lines()) == 1
    assert [key.split("/")[1] for key in desk.audio_keys()] == [record.id]


def test_a_redis_without_memory_takes_no_job_and_loses_none(
    desk: Desk, own_redis: Redis, environment: dict[str, str], tmp_path: Path
) -> None:
    client = build_app(desk.settings).test_client()
    with run_worker(environment, tmp_path / "worker.log", tone_window_ms=1_000) as worker:
        ids = [desk.submit(f"Number {index}.") for index in range(3)]
        desk.wait_for(ids[0], Status.RUNNING)
        own_redis.config_set("maxmemory", 1)
        answer = client.post("/v1/jobs", json={"text": "No room for me."})
        assert_problem(answer, 503)
        assert int(answer.headers["Retry-After"]) > 0
        wait_until(lambda: worker.has_logged("heartbeat failed"), what="a refused write")
        own_redis.config_set("maxmemory", 0)
        records = desk.wait_ended(ids)
        assert worker.process.poll() is None
    assert client.post("/v1/jobs", json={"text": "There is room."}).status_code == 202
    for index, record in enumerate(records):
        assert_speaks(desk.audio(record), f"Number {index}.")


def test_a_password_that_changes_is_an_outage_and_not_the_end(
    desk: Desk, own_redis: Redis, environment: dict[str, str], tmp_path: Path
) -> None:
    client = build_app(desk.settings).test_client()
    with run_worker(environment, tmp_path / "worker.log") as worker:
        desk.wait_ended([desk.submit("Before.")])
        own_redis.config_set("requirepass", "hunter2")
        own_redis.client_kill_filter(skipme=True, _type="normal")
        assert_problem(client.post("/v1/jobs", json={"text": "Who are you?"}), 503)
        wait_until(lambda: worker.has_logged("reconciling failed"), what="a refused connection")
        own_redis.config_set("requirepass", "")
        [record] = desk.wait_ended([desk.submit("After.")])
        assert worker.process.poll() is None
        assert "hunter2" not in worker.log_file.read_text()
    assert_speaks(desk.audio(record), "After.")


def test_a_primary_that_is_a_replica_for_a_while(
    desk: Desk, own_redis: Redis, promises: Promises, environment: dict[str, str], tmp_path: Path
) -> None:
    """What connections see that outlive a failover: every write is refused, and that is no end of the worker."""
    with run_worker(environment, tmp_path / "worker.log", tone_window_ms=200) as worker:
        promises.submit("Before.")
        promises.assert_kept()
        own_redis.replicaof("127.0.0.1", "1")
        wait_until(lambda: worker.has_logged("reconciling failed"), what="a refused write")
        own_redis.replicaof("NO", "ONE")
        promises.submit("After.")
        assert promises.assert_kept() == {"succeeded": 2}
        assert worker.process.poll() is None
