"""Jobs over a primary that a Sentinel names, and over the one that it names when the first has died."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from promises import Promises
from redis import Redis
from redis.exceptions import RedisError
from servers import S3Server, free_ports, run_redis, run_sentinel, wait_until
from workers import Desk, run_worker

from worker.doctor.findings import Level, ok
from worker.doctor.redis_server import check_redis
from worker.jobs import names
from worker.jobs.admin import main
from worker.jobs.broker import publish
from worker.jobs.errors import StartupError
from worker.jobs.models import Queue
from worker.jobs.settings import Settings
from worker.jobs.startup import check_redis as check_at_the_start
from worker.jobs.transport import FIRST_HEADER

PASSWORD = "hush-hush"
SERVICE = "speech.primary"


@contextmanager
def primary_and_replica(folder: Path) -> Iterator[tuple[str, Redis]]:
    """The URL by way of a Sentinel, and a client of the primary itself."""
    folders = [folder / name for name in ("primary", "replica", "sentinel")]
    for each in folders:
        each.mkdir()
    options = ["--requirepass", PASSWORD, "--masterauth", PASSWORD, "--repl-diskless-sync-delay", "0"]
    with run_redis(folders[0], None, *options) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        with (
            Redis(port=port, db=1, password=PASSWORD, decode_responses=True) as primary,
            run_redis(folders[1], None, *options, "--replicaof", "127.0.0.1", str(port)),
        ):
            # Linked before the Sentinel starts, which looks for replicas then and every ten seconds.
            wait_until(
                lambda: primary.info("replication").get("slave0", {}).get("state") == "online", what="the replica"
            )
            with run_sentinel(folders[2], SERVICE, port, PASSWORD) as sentinel:
                [nobody] = free_ports(1)
                yield f"redis+sentinel://:{PASSWORD}@127.0.0.1:{nobody},127.0.0.1:{sentinel}/{SERVICE}/1", primary


def wait_replicated(primary: Redis) -> None:
    """Whatever was written before the call."""
    offset = primary.info("replication")["master_repl_offset"]
    wait_until(lambda: primary.info("replication")["slave0"]["offset"] >= offset, what="the replica to have it all")


def takes_writes(redis: Redis) -> bool:
    try:
        return bool(redis.set("written", "1"))
    except RedisError:
        return False


def test_a_failover_loses_no_replicated_job(
    redis_url: str, s3: S3Server, settings: Settings, environment: dict[str, str], tmp_path: Path
) -> None:
    with (
        primary_and_replica(tmp_path) as (url, primary),
        closing(Desk(settings.model_copy(update={"redis_url": url}))) as desk,
    ):
        promises = Promises(desk, s3)
        promises.submit("Waits already.")
        first = promises.submit("Put before it.", is_lost=True)
        assert publish(desk.celery, first, Queue.INTERACTIVE, first=True)
        messages = primary.lrange(names.message_list_key(settings.redis_prefix, Queue.INTERACTIVE.value), 0, -1)
        # The last of the list is taken first.
        assert [FIRST_HEADER in json.loads(message)["headers"] for message in messages] == [False, True]

        log = tmp_path / "worker.log"
        with run_worker(environment, log, redis_url=url, tone_window_ms=100, max_batch_requests=1) as worker:
            for index in range(10):
                promises.submit(f"Before it, {index}.")
            wait_replicated(primary)
            dead_port = desk.redis.connection_pool.master_address[1]
            os.kill(primary.info()["process_id"], signal.SIGKILL)

            wait_until(lambda: takes_writes(desk.redis), 20.0, "a new primary")
            assert desk.redis.connection_pool.master_address[1] != dead_port
            for index in range(5):
                promises.submit(f"After it, {index}.")
            assert promises.assert_kept() == {"succeeded": 17}
            assert worker.process.poll() is None
        assert PASSWORD not in log.read_text()


def test_what_doctor_start_and_admin_say(
    redis_url: str, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with primary_and_replica(tmp_path) as (url, _):
        found = {finding.subject: finding for finding in check_redis(settings.model_copy(update={"redis_url": url}))}
        shown = url.replace(PASSWORD, "***")
        assert found["connection"] == ok("connection", shown)
        assert found["writes"].level is Level.OK
        assert (found["password"].text, found["encryption"].text) == ("asked for", "not needed on this machine")

        check_at_the_start(settings.model_copy(update={"redis_url": url}))
        assert main(["list"], {"OMNIVOICE_REDIS_URL": url}) == 0
        # Neither is a primary to be found under another name, nor without Sentinels, nor with another password.
        wrong = [url.replace(SERVICE, "nobody"), f"redis+sentinel://:{PASSWORD}@127.0.0.1:1/{SERVICE}"]
        for each in (*wrong, url.replace(PASSWORD, f"{PASSWORD}-wrong")):
            assert main(["list"], {"OMNIVOICE_REDIS_URL": each}) == 2
            with pytest.raises(StartupError) as refused:
                check_at_the_start(Settings(redis_url=each))
            [finding] = check_redis(Settings(redis_url=each))
            assert finding.level is Level.ERROR
            for said in (capsys.readouterr().err, str(refused.value), finding.text):
                assert "redis+sentinel://:***@127.0.0.1:" in said
                assert PASSWORD not in said
