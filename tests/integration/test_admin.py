"""`python -m worker.jobs` on a real ledger: what it shows, what it changes, and what it leaves alone."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from api_service import num_messages, succeed_job
from job_examples import FAILURE, claimed, new_job, result_of, running, submitted
from redis import Redis
from servers import S3Server, free_ports, wait_until

from worker.jobs import names
from worker.jobs.admin import main
from worker.jobs.ledger import Claim, Hold, Ledger
from worker.jobs.models import Queue, Status
from worker.jobs.settings import Settings
from worker.jobs.storage import ObjectStore

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ledger(redis_client: Redis, redis_settings: Settings) -> Ledger:
    return Ledger(redis_client, redis_settings)


@pytest.fixture
def run(redis_settings: Settings, capsys: pytest.CaptureFixture[str]) -> Run:
    """(exit status, standard output, standard error) of the command line on the test's ledger."""

    def run(*arguments: str, **update: object) -> tuple[int, str, str]:
        settings = redis_settings.model_copy(update=update)
        environ = {name: value for name, value in settings.describe().items() if value}
        capsys.readouterr()
        status = main(arguments, environ)
        return status, *capsys.readouterr()

    return run


def failed(ledger: Ledger, **body: object) -> Claim:
    claim = running(ledger, submitted(ledger, **body))
    assert ledger.end(claim, Status.FAILED, FAILURE)
    return claim


def succeeded(ledger: Ledger) -> str:
    claim = running(ledger, submitted(ledger))
    assert ledger.complete(claim, result_of(claim))
    return claim.id


def age(redis: Redis, settings: Settings, job_id: str, seconds: int) -> None:
    """Let the job have ended so long ago."""
    key = names.job_key(settings.redis_prefix, job_id)
    redis.hset(key, "finished_ms", int(redis.hget(key, "finished_ms")) - seconds * 1_000)


# -- list and show -----------------------------------------------------------------------------------------------------


def test_list_by_age_and_status(ledger: Ledger, run: Run) -> None:
    ids = [submitted(ledger), failed(ledger).id, succeeded(ledger), submitted(ledger, queue="bulk")]

    def listed(*arguments: str) -> list[str]:
        status, output, _ = run("list", *arguments)
        assert status == 0
        head, *lines = output.splitlines()
        assert head.split() == ["id", "status", "queue", "created", "tries", "owner", "error"]
        return [line.split()[0] for line in lines]

    by_age = sorted(ids)
    assert listed() == by_age[::-1]
    assert listed("--oldest") == by_age
    assert listed("--limit", "2") == by_age[:1:-1]
    assert listed("--status", "failed") == [ids[1]]
    assert set(listed("--status", "failed", "--status", "succeeded")) == {ids[1], ids[2]}
    assert listed("--status", "running") == []
    [row] = [json.loads(line) for line in run("list", "--status", "failed", "--json")[1].splitlines()]
    assert (row["id"], row["attempts"], row["error"], row["owner"]) == (ids[1], 1, FAILURE.type, "test")
    assert row["finished_ms"] >= row["created_ms"]


def test_limit_counts_what_is_shown(ledger: Ledger, run: Run) -> None:
    wanted = failed(ledger).id
    for _ in range(600):  # more than are read at once
        submitted(ledger)
    assert run("list", "--status", "failed", "--limit", "1")[1].splitlines()[1].startswith(wanted)
    assert len(run("list")[1].splitlines()) == 1 + 20
    assert len(run("list", "--limit", "590")[1].splitlines()) == 1 + 590


def test_show_is_the_job_as_clients_see_it_and_its_owner(ledger: Ledger, run: Run) -> None:
    job_id = submitted(ledger, text="Show me.", owner="anna")
    status, output, _ = run("show", job_id)
    shown = json.loads(output)
    assert (status, shown["id"], shown["status"], shown["owner"]) == (0, job_id, "queued", "anna")
    assert shown["request"]["text"] == "Show me."


def test_what_is_not_there_or_no_id(run: Run) -> None:
    unknown = names.new_job_id()
    for command in ("show", "requeue", "cancel"):
        status, output, errors = run(command, unknown)
        assert (status, output) == (1, "")
        assert errors == f"{unknown}: no such job\n"
        with pytest.raises(SystemExit) as ended:
            run(command, "job_1")
        assert ended.value.code == 2
    for arguments in (["purge", "--older-than", "soon"], ["list", "--limit", "0"], ["list", "--status", "lost"], []):
        with pytest.raises(SystemExit) as ended:
            run(*arguments)
        assert ended.value.code == 2


def test_no_redis_is_one_line(run: Run) -> None:
    [port] = free_ports(1)
    status, output, errors = run("list", redis_url=f"redis://:hush-hush@127.0.0.1:{port}/0")
    assert (status, output, len(errors.splitlines())) == (2, "", 1)
    assert errors.startswith(f"Redis at redis://:***@127.0.0.1:{port}/0 cannot be used: ")
    assert "hush-hush" not in errors


# -- requeue and cancel ------------------------------------------------------------------------------------------------


def test_a_failed_job_is_queued_again_and_succeeds(
    ledger: Ledger, redis_client: Redis, redis_settings: Settings, run: Run
) -> None:
    late = failed(ledger, expires_in=60.0, queue="bulk")
    key = names.job_key(redis_settings.redis_prefix, late.id)
    assert redis_client.ttl(key) > 0
    assert run("requeue", late.id)[:2] == (0, f"{late.id}: queued again\n")
    record = ledger.get(late.id)
    assert (record.status, record.attempts, record.error, record.finished_at) == (Status.QUEUED, 0, None, None)
    assert redis_client.ttl(key) == -1, "it must not be forgotten while it waits"
    assert 0 < int(redis_client.hget(key, "expires_ms")) - int(redis_client.time()[0] * 1_000) < 62_000
    assert num_messages(redis_settings, redis_client, "bulk") == 1
    assert ledger.depth()[Queue.BULK] == 1
    assert ledger.stats()[Queue.BULK].oldest_seconds < 60
    assert not ledger.complete(late, result_of(late)), "the holder of the old lease is fenced off"
    assert ledger.heartbeat([late]) == {late.id: Hold.LOST}

    claim = running(ledger, late.id)
    assert claim.attempts == 0
    assert ledger.complete(claim, result_of(claim))
    stats = ledger.stats()[Queue.BULK]
    assert (stats.submitted, stats.requeued, sum(stats.ended.values())) == (1, 1, 2)
    assert redis_client.ttl(key) > 0


def test_a_requeued_job_waits_from_then_on(ledger: Ledger, redis_client: Redis, run: Run) -> None:
    job_id = failed(ledger).id
    redis_client.hincrby(names.job_key(ledger._prefix, job_id), "created_ms", -3_600_000)
    run("requeue", job_id)
    claim = claimed(ledger, job_id)
    assert abs(claim.queued_at_ms / 1_000 - time.time()) < 30
    assert ledger.get(job_id).created_at < claim.queued_at_ms - 3_000_000


def test_a_requeued_job_that_waits_for_room_is_not_announced(
    redis_client: Redis, redis_settings: Settings, run: Run
) -> None:
    bounded = redis_settings.model_copy(update={"max_published": 1})
    ledger = Ledger(redis_client, bounded)
    job_id = failed(ledger).id
    redis_client.lpush(names.message_list_key(ledger._prefix, "interactive"), "another's")
    assert run("requeue", job_id, max_published=1)[:2] == (0, f"{job_id}: queued again\n")
    assert num_messages(redis_settings, redis_client, "interactive") == 1
    assert not ledger.get(job_id).is_published


def test_a_requeued_job_needs_its_clip_again(ledger: Ledger, run: Run) -> None:
    key = names.reference_key("0" * 64, 0.0)
    new = dataclasses.replace(new_job(ref_text="What the clip says, word for word."), reference_key=key)
    ledger.submit(new)
    assert ledger.end(running(ledger, new.id), Status.FAILED, FAILURE)
    assert ledger.used_references([key]) == set()
    run("requeue", new.id)
    assert ledger.used_references([key]) == {key}, "the sweeper leaves it"
    ledger.cancel(new.id)
    assert ledger.used_references([key]) == set()


def test_a_requeued_job_whose_message_is_lost_is_announced_again(ledger: Ledger, redis_client: Redis, run: Run) -> None:
    job_id = failed(ledger).id
    run("requeue", job_id)
    redis_client.delete(names.message_list_key(ledger._prefix, "interactive"))
    wait_until(lambda: (job_id, Queue.INTERACTIVE) in ledger.overdue(), 5, "its announcement")


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING, Status.SUCCEEDED, Status.CANCELLED])
def test_only_failed_jobs_are_queued_again(
    status: Status, ledger: Ledger, redis_client: Redis, redis_settings: Settings, run: Run
) -> None:
    job_id = submitted(ledger)
    if status is Status.CANCELLED:
        ledger.cancel(job_id)
    elif status is not Status.QUEUED:
        claim = running(ledger, job_id)
        if status is Status.SUCCEEDED:
            ledger.complete(claim, result_of(claim))
    key = names.job_key(redis_settings.redis_prefix, job_id)
    before = redis_client.hgetall(key)
    code, output, errors = run("requeue", job_id, failed(ledger).id)
    assert code == 1
    assert f"{job_id}: is {status.value}; only a job that failed" in errors
    assert len(output.splitlines()) == 1, "the other one is queued again all the same"
    assert redis_client.hgetall(key) == before


def test_cancel(ledger: Ledger, run: Run) -> None:
    waiting, claim, ended = submitted(ledger), running(ledger, submitted(ledger)), succeeded(ledger)
    assert run("cancel", waiting)[:2] == (0, f"{waiting}: cancelled\n")
    assert run("cancel", claim.id)[:2] == (0, f"{claim.id}: runs, and ends as cancelled at its next step\n")
    assert run("cancel", ended)[::2] == (1, f"{ended}: has ended already\n")
    assert ledger.get(waiting).status is Status.CANCELLED
    assert ledger.heartbeat([claim]) == {claim.id: Hold.CANCELLED}
    assert ledger.get(ended).status is Status.SUCCEEDED


# -- purge -------------------------------------------------------------------------------------------------------------


def test_purge_takes_what_ended_long_ago_and_nothing_else(
    ledger: Ledger, redis_client: Redis, redis_settings: Settings, run: Run
) -> None:
    old_failed, old, young = failed(ledger).id, succeeded(ledger), succeeded(ledger)
    waiting, held = submitted(ledger), running(ledger, submitted(ledger)).id
    for job_id in (old_failed, old):
        age(redis_client, redis_settings, job_id, 7_200)
    assert run("purge", "--older-than", "3h", "--yes")[:2] == (0, "no job is to be purged\n")
    assert run("purge", "--older-than", "1h", "--status", "failed", "--yes")[:2] == (0, "1 of 1 purged\n")
    assert ledger.get(old_failed) is None
    assert ledger.get(old) is not None
    assert run("purge", "--older-than", "60m", "--yes")[:2] == (0, "1 of 1 purged\n")
    assert ledger.get(old) is None
    for job_id in (young, waiting, held):
        assert ledger.get(job_id) is not None
    assert run("purge", "--older-than", "0s", "--yes")[1] == "1 of 1 purged\n", "what has not ended stays"
    assert ledger.depth()[Queue.INTERACTIVE] == 2


@pytest.mark.parametrize(
    ("answer", "is_purged"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_purge_asks(answer: str, is_purged: bool, ledger: Ledger, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = succeeded(ledger)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    status, _, errors = run("purge", "--older-than", "0s")
    assert "Purge the records of 1 ended jobs" in errors
    assert status == (0 if is_purged else 1)
    assert (ledger.get(job_id) is None) == is_purged


def test_an_idempotency_key_of_a_purged_job_is_free_again(ledger: Ledger, run: Run) -> None:
    record, _ = ledger.submit(new_job(key="k"))
    ledger.cancel(record.id)
    run("purge", "--older-than", "0s", "--yes")
    assert ledger.submit(new_job("Something else.", key="k"))[1]


def test_purge_with_audio_needs_a_store_before_it_purges(
    ledger: Ledger, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = failed(ledger).id
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    status, output, errors = run("purge", "--older-than", "0s", "--yes", "--with-audio")
    assert (status, output, len(errors.splitlines())) == (2, "", 1)
    assert ledger.get(job_id), "it had no audio, but others may have"
    assert run("purge", "--older-than", "0s", "--yes")[1] == "1 of 1 purged\n"


def test_purge_with_audio(settings: Settings, environment: dict[str, str], s3: S3Server) -> None:
    """As the process that an operator starts."""
    ledger = Ledger.from_settings(settings)

    def purge(*more: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "worker.jobs", "purge", "--older-than", "0s", "--yes", *more]
        return subprocess.run(command, env={**environment, **variables}, capture_output=True, text=True, check=False)

    store = ObjectStore(settings)
    ids = [submitted(ledger) for _ in range(2)]
    keys = [store.key_of(succeed_job(settings, job_id).uri) for job_id in ids]
    elsewhere = purge("--with-audio", OMNIVOICE_S3_PREFIX="elsewhere")
    assert (elsewhere.returncode, elsewhere.stdout) == (1, "0 of 2 purged\n"), "the record is all that knows the audio"
    assert all(store.exists(key) and ledger.get(job_id) for key, job_id in zip(keys, ids, strict=True))
    done = purge("--with-audio")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 of 2 purged\n", "")
    assert not any(store.exists(key) or ledger.get(job_id) for key, job_id in zip(keys, ids, strict=True))
