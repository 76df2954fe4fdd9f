"""A copy of Redis's data, made while jobs run, put into a new server: jobs go on, as README's section on it says."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from api_service import REF_TEXT, clip
from redis import Redis
from servers import run_redis, wait_until
from workers import Desk, assert_speaks, run_worker

from worker.jobs.models import Status
from worker.jobs.settings import Settings

DURABLE = ("--appendonly", "yes", "--appendfsync", "everysec")


def copy_append_only_file(redis: Redis, source: Path, target: Path) -> None:
    """Its files are only appended to, unless they are rewritten, which must not happen meanwhile."""
    percentage = redis.config_get("auto-aof-rewrite-percentage")["auto-aof-rewrite-percentage"]
    redis.config_set("auto-aof-rewrite-percentage", 0)
    wait_until(lambda: not redis.info("persistence")["aof_rewrite_in_progress"], what="no rewriting")
    if (source / "appendonlydir").exists():
        shutil.copytree(source / "appendonlydir", target / "appendonlydir")
    else:  # before Redis 7
        shutil.copy(source / "appendonly.aof", target / "appendonly.aof")
    redis.config_set("auto-aof-rewrite-percentage", percentage)


def copy_snapshot(redis: Redis, source: Path, target: Path) -> None:
    """A snapshot is put in its place when it is whole, so that it may be copied at any time."""
    before = redis.lastsave()
    wait_until(lambda: redis.lastsave() != before or redis.bgsave(), what="a new snapshot")
    wait_until(lambda: not redis.info("persistence")["rdb_bgsave_in_progress"], what="its end")
    shutil.copy(source / "dump.rdb", target / "dump.rdb")


@contextlib.contextmanager
def from_append_only_file(folder: Path) -> Iterator[str]:
    with run_redis(folder, None, *DURABLE) as url:
        yield url


@contextlib.contextmanager
def from_snapshot(folder: Path) -> Iterator[str]:
    """With `appendonly yes` at its start Redis would read that file alone, which is not there yet."""
    with run_redis(folder) as url, Redis.from_url(url) as redis:
        assert redis.dbsize()
        redis.config_set("appendonly", "yes")
        wait_until(lambda: not aof_is_pending(redis), what="the append-only file to be written")
        yield url


def aof_is_pending(redis: Redis) -> bool:
    facts = redis.info("persistence")
    return bool(facts["aof_rewrite_in_progress"] or facts["aof_rewrite_scheduled"])


@pytest.mark.redis
@pytest.mark.parametrize(
    ("copy", "restored"),
    [(copy_append_only_file, from_append_only_file), (copy_snapshot, from_snapshot)],
    ids=["append-only file", "snapshot"],
)
def test_jobs_go_on_from_a_backup(
    copy: Callable[[Redis, Path, Path], None],
    restored: Callable[[Path], contextlib.AbstractContextManager[str]],
    settings: Settings,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    with run_redis(old, None, *DURABLE) as url, Redis.from_url(url) as redis:
        desk = Desk(settings.model_copy(update={"redis_url": url}))
        desk.store.put("references/clip", clip(), "audio/wav")
        with run_worker(environment, tmp_path / "old.log", redis_url=url, tone_window_ms=400, max_batch_requests=1):
            done = desk.submit("I was done.")
            desk.wait_for(done, Status.SUCCEEDED)
            open_jobs = [desk.submit(f"I ran or waited, {index}.") for index in range(3)]
            open_jobs.append(desk.submit("In your voice.", reference_key="references/clip", ref_text=REF_TEXT))
            wait_until(lambda: desk.record(open_jobs[0]).status is not Status.QUEUED, what="a start")
            before = desk.record(done)
            copy(redis, old, new)
            late = desk.submit("I came after the backup.")
            desk.wait_ended([late, *open_jobs])
        desk.close()
    lost_attempts = [key for key in desk.audio_keys() if key.split("/")[1] in open_jobs]
    assert len(lost_attempts) == len(open_jobs)
    for key in lost_attempts:  # a job without a seed says the same in other bytes the next time
        desk.store.delete(key)
        desk.store.put(key, b"another attempt's audio", "audio/wav")
    with restored(new) as url:
        desk = Desk(settings.model_copy(update={"redis_url": url}))
        with run_worker(environment, tmp_path / "new.log", redis_url=url):
            for record in desk.wait_ended(open_jobs):
                assert_speaks(desk.audio(record), record.request.text)
        assert desk.record(done) == before, "an ended job is as it was"
        assert desk.audio(before)
        assert desk.ledger.get(late) is None, "its record is lost, its audio nobody's"
        assert any(late in key for key in desk.audio_keys()), "until the sweeper comes for it"
        desk.close()
