"""Redis loses its data, its memory's room or its password while the service runs: said, and worked on afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_service import assert_problem, build_app
from redis import Redis
from servers import run_redis, wait_until
from workers import Desk, assert_speaks, run_worker

from worker.jobs.models import Status
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
