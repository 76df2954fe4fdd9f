"""What the start-up check says about Redis servers that cannot be used."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from job_examples import new_job
from redis import Redis
from servers import run_redis, wait_until

from worker.jobs.broker import make_celery, publish
from worker.jobs.errors import StartupError
from worker.jobs.ledger import Ledger
from worker.jobs.models import Queue
from worker.jobs.names import new_job_id
from worker.jobs.settings import Settings
from worker.jobs.startup import check_redis


def refusal(url: str) -> str:
    with pytest.raises(StartupError) as refused:
        check_redis(Settings(redis_url=url))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_usable_redis_passes(redis_settings: Settings) -> None:
    check_redis(redis_settings)


def test_no_redis_is_named() -> None:
    assert refusal("redis://127.0.0.1:1/0").startswith("Redis at redis://127.0.0.1:1/0 cannot be used")


@pytest.mark.redis
def test_a_wrong_password_is_named_but_not_shown(redis_url: str, tmp_path: Path) -> None:
    with run_redis(tmp_path, None, "--requirepass", "right") as url:
        host = url.removeprefix("redis://")
        assert "refuses the password" in refusal(f"redis://:wrong-word@{host}")
        assert "wrong-word" not in refusal(f"redis://:wrong-word@{host}")
        assert "refuses the password" in refusal(url)
        check_redis(Settings(redis_url=f"redis://:right@{host}"))


@pytest.mark.redis
def test_a_redis_that_evicts_jobs_is_refused(redis_url: str, tmp_path: Path) -> None:
    with run_redis(tmp_path, None, "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru") as url:
        assert "allkeys-lru" in refusal(url)
    with run_redis(tmp_path, None, "--maxmemory", "64mb", "--maxmemory-policy", "noeviction") as url:
        check_redis(Settings(redis_url=url))


@pytest.mark.redis
def test_a_redis_that_takes_no_writes_is_refused(redis_url: str, tmp_path: Path) -> None:
    with run_redis(tmp_path, None, "--maxmemory", "1", "--maxmemory-policy", "noeviction") as url:
        assert "cannot be used" in refusal(url)


@pytest.mark.redis
def test_a_redis_that_cannot_write_to_its_disk_is_refused(redis_url: str, tmp_path: Path) -> None:
    """It refuses writes once a save has failed: a full disk and a folder that is gone are the same to it."""
    folder = tmp_path / "gone"
    folder.mkdir()
    with run_redis(folder, None, "--save", "3600", "1000000") as url, Redis.from_url(url) as redis:
        shutil.rmtree(folder)
        redis.set("key", "value")
        redis.bgsave()
        wait_until(lambda: redis.info("persistence")["rdb_last_bgsave_status"] == "err")
        assert "MISCONF" in refusal(url)


@pytest.mark.redis
def test_a_node_of_a_cluster_needs_all_keys_in_one_slot(redis_url: str, tmp_path: Path) -> None:
    with run_redis(tmp_path, None, "--cluster-enabled", "yes") as url, Redis.from_url(url) as redis:
        redis.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))
        wait_until(lambda: b"cluster_state:ok" in redis.execute_command("CLUSTER", "INFO"), what="a cluster of one")
        assert "OMNIVOICE_REDIS_PREFIX={omnivoice}" in refusal(url)
        settings = Settings(redis_url=url, redis_prefix="{omnivoice}")
        check_redis(settings)
        Ledger.from_settings(settings).submit(new_job())
        assert publish(make_celery(settings), new_job_id(), Queue.INTERACTIVE)
