"""Objects that no job needs any more leave a real object store, and no others."""

from __future__ import annotations

import dataclasses
import io
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from api_service import REF_TEXT, build_app, clip, fail_job, start_job, submit, succeed_job
from flask.testing import FlaskClient
from redis import Redis
from servers import S3Server, free_ports, s3_client, wait_until

from worker.jobs import names
from worker.jobs.ledger import Ledger
from worker.jobs.settings import Settings
from worker.jobs.storage import ObjectStore
from worker.jobs.sweeper import CHECK_SECONDS, MAX_PAGES, MIN_REFERENCE_SECONDS, Lifetimes, Sweeper

NONE = Lifetimes(-2, -2, -2)
"""Everything is old enough, also by a clock of whole seconds: whether it goes depends on the ledger alone."""
HOUR = 3600.0


@pytest.fixture
def store(settings: Settings) -> ObjectStore:
    return ObjectStore(settings)


@pytest.fixture
def ledger(settings: Settings) -> Ledger:
    return Ledger.from_settings(settings)


@pytest.fixture
def client(settings: Settings) -> FlaskClient:
    return build_app(settings).test_client()


def sweep(settings: Settings, redis: Redis, lifetimes: Lifetimes = NONE, max_objects: int = 1_000) -> int:
    """A whole pass over the three folders, and the turn given back after each round; how many objects it deleted."""
    sweeper = Sweeper(
        Ledger.from_settings(settings), ObjectStore(settings), lifetimes, threading.Event(), max_objects=max_objects
    )
    turn, position = names.sweep_keys(settings.redis_prefix)
    num_deleted = 0
    while True:
        redis.delete(turn)
        num_deleted += sweeper.sweep()
        if not redis.get(position):
            return num_deleted


def keys(s3: S3Server, settings: Settings) -> set[str]:
    root = f"{settings.s3_prefix}/"
    listed = s3_client(s3).list_objects_v2(Bucket=s3.bucket, Prefix=root)
    return {item["Key"].removeprefix(root) for item in listed.get("Contents", ())}


def post_with_clip(client: FlaskClient, seconds: float = 3.0, status: int = 202) -> str | None:
    parts = {
        "request": f'{{"text": "Hi.", "ref_text": "{REF_TEXT}"}}',
        "ref_audio": (io.BytesIO(clip(seconds)), "v.wav"),
    }
    answer = client.post("/v1/jobs", data=parts)
    assert answer.status_code == status, answer.text
    return answer.get_json().get("id")


def test_audio_leaves_once_its_record_has(
    client: FlaskClient, settings: Settings, redis_client: Redis, store: ObjectStore, s3: S3Server
) -> None:
    ended, running, kept = (submit(client) for _ in range(3))
    brief = settings.model_copy(update={"retention_hours": 0.5 / HOUR})
    audio = store.key_of(succeed_job(brief, ended).uri)
    lost_copy = names.audio_key(ended, 99, "wav")
    store.put(lost_copy, b"of a worker that came too late", "audio/wav")
    start_job(settings, running)
    early_copy = names.audio_key(running, 0, "wav")
    store.put(early_copy, b"of an attempt that was lost", "audio/wav")
    kept_audio = store.key_of(succeed_job(settings, kept).uri)
    foreign = "audio/notes.txt"
    store.put(foreign, b"not ours", "text/plain")
    wait_until(lambda: not redis_client.exists(names.job_key(settings.redis_prefix, ended)), what="the record's end")
    assert keys(s3, settings) == {audio, lost_copy, early_copy, kept_audio, foreign}
    assert sweep(settings, redis_client, dataclasses.replace(NONE, audio=HOUR)) == 0, "links may still be in use"
    assert sweep(settings, redis_client) == 2
    assert keys(s3, settings) == {early_copy, kept_audio, foreign}
    assert client.get(f"/v1/jobs/{kept}/audio").status_code == 302
    assert client.get(f"/v1/jobs/{ended}/audio").status_code == 404


@pytest.mark.parametrize("end", [succeed_job, fail_job, "cancel"])
def test_clip_leaves_once_the_last_of_its_jobs_has_ended(
    client: FlaskClient, settings: Settings, redis_client: Redis, ledger: Ledger, s3: S3Server, end: object
) -> None:
    first, second = post_with_clip(client), post_with_clip(client)
    (reference,) = keys(s3, settings)
    assert sweep(settings, redis_client) == 0
    for job_id in (first, second):
        assert job_id is not None
        assert reference in keys(s3, settings)
        if callable(end):
            end(settings, job_id)
        else:
            ledger.cancel(job_id)
        assert sweep(settings, redis_client, dataclasses.replace(NONE, reference=HOUR)) == 0, "it may be sent again"
        sweep(settings, redis_client)
    assert reference not in keys(s3, settings)


def test_clip_of_a_refused_job_and_what_a_check_left_leave(
    settings: Settings, redis_client: Redis, store: ObjectStore, s3: S3Server
) -> None:
    client = build_app(settings.model_copy(update={"max_queue": 1})).test_client()
    accepted = post_with_clip(client)
    used = keys(s3, settings)
    assert post_with_clip(client, seconds=4.0, status=429) is None
    left = f"checks/{names.new_job_id()}"
    store.put(left, b"its process was killed", "text/plain")
    assert len(keys(s3, settings)) == 3
    assert sweep(settings, redis_client, Lifetimes(0, HOUR, HOUR)) == 0
    assert sweep(settings, redis_client) == 2
    assert keys(s3, settings) == used
    assert accepted is not None


def test_a_round_is_bounded_and_the_next_goes_on(
    settings: Settings, redis_client: Redis, ledger: Ledger, store: ObjectStore, s3: S3Server
) -> None:
    """Kept objects at the front do not hide what lies behind them."""
    turn, _ = names.sweep_keys(settings.redis_prefix)
    client = build_app(settings).test_client()
    kept = [names.audio_key(submit(client), token, "wav") for token in range(5)]
    doomed = [names.audio_key(names.new_job_id(), 1, "wav") for _ in range(15)]
    for key in (*kept, *doomed):
        store.put(key, b"audio", "audio/wav")
    sweeper = Sweeper(ledger, store, NONE, threading.Event(), max_objects=1)
    assert sweeper.sweep() == MAX_PAGES - len(kept)
    assert sweeper.sweep() == 0, "not before its time, whoever asks"
    redis_client.delete(turn)
    assert sweeper.sweep() == len(doomed) - (MAX_PAGES - len(kept))
    assert keys(s3, settings) == set(kept)


def test_young_objects_end_a_pass(settings: Settings, redis_client: Redis, ledger: Ledger, store: ObjectStore) -> None:
    for _ in range(MAX_PAGES + 2):
        store.put(names.audio_key(names.new_job_id(), 1, "wav"), b"audio", "audio/wav")
    assert Sweeper(ledger, store, Lifetimes(HOUR, 0, 0), threading.Event(), max_objects=1).sweep() == 0
    assert redis_client.get(names.sweep_keys(settings.redis_prefix)[1]) == "", "the next one begins anew"


def test_lifetimes_follow_from_the_settings(settings: Settings) -> None:
    short = Lifetimes.of(settings.model_copy(update={"retention_hours": 0.5, "audio_url_seconds": 60}))
    assert short == Lifetimes(0.5 * HOUR + 60, MIN_REFERENCE_SECONDS, CHECK_SECONDS)
    assert Lifetimes.of(settings.model_copy(update={"retention_hours": 100})).reference == 100 * HOUR


def test_a_clip_of_another_hour_is_another_object() -> None:
    now = 1_796_000_000.0
    assert names.reference_key("abc", now) == names.reference_key("abc", now + 1)
    assert names.reference_key("abc", now) < names.reference_key("abc", now + HOUR)
    assert now - HOUR < (names.key_seconds(names.reference_key("abc", now)) or 0) <= now
    job_id = names.new_job_id()
    assert names.key_seconds(f"checks/{job_id}") == names.key_seconds(f"audio/{job_id}/1.wav")
    assert names.key_seconds("references/abc") is None


@pytest.fixture
def api_process(environment: dict[str, str]) -> Iterator[None]:
    variables = {"OMNIVOICE_RETENTION_HOURS": str(0.5 / HOUR), "OMNIVOICE_AUDIO_URL_SECONDS": "1"}
    variables["OMNIVOICE_API_PORT"] = str(free_ports(1)[0])
    process = subprocess.Popen([sys.executable, "-m", "api"], env={**environment, **variables})
    yield
    process.terminate()
    process.wait(20)


def test_a_running_api_sweeps(
    settings: Settings, s3: S3Server, store: ObjectStore, request: pytest.FixtureRequest
) -> None:
    key = names.audio_key(names.new_job_id(), 1, "wav")
    store.put(key, b"audio", "audio/wav")
    wait_until(lambda: store.page("audio/", "", 1)[0][0].age_seconds >= 2, what="its age")
    request.getfixturevalue("api_process")
    wait_until(lambda: key not in keys(s3, settings), 30, "the object's end")
