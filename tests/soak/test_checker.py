"""The checker complains about every kind of damage, done to a real Redis and a real object store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from job_examples import FAILURE
from redis import Redis
from servers import S3Server, s3_client

from tests.soak.checker import Store
from tests.soak.evidence import Evidence, Submission
from tests.soak.scene import MAX_ATTEMPTS, Scene, result_of, tone
from worker.jobs import names
from worker.jobs.ledger import CancelOutcome, Ledger
from worker.jobs.models import Status
from worker.jobs.settings import Settings
from worker.jobs.storage import ObjectStore


@pytest.fixture
def scene(settings: Settings, redis_client: Redis, s3: S3Server) -> Iterator[Scene]:
    settings = settings.model_copy(update={"lease_seconds": 30.0})
    client = s3_client(s3)
    store = Store(client, s3.bucket, f"{settings.s3_prefix}/")
    writer, ledger = ObjectStore(settings), Ledger(redis_client, settings)
    made = Scene(redis_client, settings, store, writer, ledger, Evidence(), "", "", "", "")
    made.spoken, made.other = made.submit(0), made.submit(1, key="a-key")
    made.cancelled, made.expired = made.submit(2), made.submit(3, expires_in=0.001)
    made.succeed(made.spoken)
    made.succeed(made.other)
    made.ledger.cancel(made.cancelled)
    made.evidence.note_cancel(made.cancelled, 200)
    made.evidence.note_status(made.cancelled, "cancelled")
    made.ledger.claim(made.expired, "worker")  # refused: its time is over
    yield made
    client.close()


def test_what_ended_well_is_clean(scene: Scene) -> None:
    verdict = scene.judge()
    assert verdict.complaints == []
    assert verdict.num_by_status == {"succeeded": 2, "cancelled": 1, "expired": 1}
    assert (verdict.num_heard, verdict.num_unreferenced, verdict.num_unanswered) == (2, 0, 0)


def other_bytes_of_the_same_tone(scene: Scene) -> None:
    data = bytearray(tone("Job 0 says this."))
    data[1000] ^= 1
    scene.write(scene.object_key(scene.spoken), bytes(data))


def audio_of_another_job(scene: Scene) -> None:
    """A swap: sha256 and size agree with the record, only the content tells."""
    key, data = scene.object_key(scene.spoken), tone("Job 1 says this.")
    scene.write(key, data)
    changed = result_of("s3://x/" + key, data)
    scene.change_result(scene.spoken, sha256=changed.sha256, bytes=changed.bytes)


def shorter_audio(scene: Scene) -> None:
    key, data = scene.object_key(scene.spoken), tone("Job 0 says this.", 0.25)
    scene.write(key, data)
    changed = result_of("s3://x/" + key, data)
    scene.change_result(scene.spoken, sha256=changed.sha256, bytes=changed.bytes)


def no_wav_file(scene: Scene) -> None:
    key, data = scene.object_key(scene.spoken), b"<html>504</html>"
    scene.write(key, data)
    changed = result_of("s3://x/" + key, data)
    scene.change_result(scene.spoken, sha256=changed.sha256, bytes=changed.bytes)


def missing_object(scene: Scene) -> None:
    scene.store.client.delete_object(Bucket=scene.store.bucket, Key=scene.store.prefix + scene.object_key(scene.spoken))


def record_names_an_older_lease(scene: Scene) -> None:
    scene.write(f"audio/{scene.spoken}/0.wav", tone("Job 0 says this."))
    uri = json.loads(scene.get(scene.spoken, "result"))["uri"]
    scene.change_result(scene.spoken, uri=uri.replace("/1.wav", "/0.wav"))


def two_objects_of_one_lease(scene: Scene) -> None:
    scene.write(f"audio/{scene.spoken}/{scene.get(scene.spoken, 'token')}.flac", b"fLaC")


def object_of_a_lease_that_never_was(scene: Scene) -> None:
    scene.write(f"audio/{scene.spoken}/99.wav", tone("Job 0 says this."))


def object_of_no_job(scene: Scene) -> None:
    scene.write(f"audio/{names.new_job_id()}/1.wav", tone("Job 0 says this."))


def lost_record(scene: Scene) -> None:
    scene.redis.delete(scene.keys.job(scene.spoken))


def failed_with_a_result(scene: Scene) -> None:
    scene.set(scene.spoken, status="failed", error=json.dumps({"type": "poison"}), attempts=MAX_ATTEMPTS)


def succeeded_with_an_error(scene: Scene) -> None:
    scene.set(scene.spoken, error=json.dumps({"type": "poison"}))


def succeeded_without_a_result(scene: Scene) -> None:
    scene.redis.hdel(scene.keys.job(scene.spoken), "result")


def status_changed_after_clients_saw_it(scene: Scene) -> None:
    scene.evidence.note_status(scene.cancelled, "succeeded")


def running_after_its_end(scene: Scene) -> None:
    scene.evidence.note_status(scene.spoken, "running")


def waits_for_ever(scene: Scene) -> None:
    scene.submit(9)


def leased_for_ever(scene: Scene) -> None:
    scene.claim(scene.submit(9))


def ended_and_still_due(scene: Scene) -> None:
    scene.redis.zadd(scene.keys.due[0], {scene.spoken: 1})


def ended_and_still_leased(scene: Scene) -> None:
    scene.set(scene.spoken, lease_ms=1)


def message_left(scene: Scene) -> None:
    scene.redis.lpush(scene.keys.messages[1], "{}")


def too_many_attempts(scene: Scene) -> None:
    scene.set(scene.spoken, attempts=MAX_ATTEMPTS + 1)


def succeeded_without_an_attempt(scene: Scene) -> None:
    scene.set(scene.spoken, attempts=0)


def failed_by_the_service(scene: Scene) -> None:
    job_id = scene.submit(9)
    claim = scene.claim(job_id)
    scene.ledger.start([claim])
    assert scene.ledger.end(claim, Status.FAILED, FAILURE)


def poison_too_early(scene: Scene) -> None:
    job_id = scene.submit(9)
    claim = scene.claim(job_id)
    scene.ledger.start([claim])
    assert scene.ledger.end(claim, Status.FAILED, FAILURE.model_copy(update={"type": "poison"}))


def cancelled_without_being_asked(scene: Scene) -> None:
    scene.evidence.accepted[scene.cancelled].cancel_answers.clear()


def accepted_cancel_without_effect(scene: Scene) -> None:
    scene.evidence.note_cancel(scene.spoken, 202)


def expired_before_its_time(scene: Scene) -> None:
    scene.set(scene.expired, expires_ms=int(scene.get(scene.expired, "finished_ms")) + 5)


def expired_without_a_time(scene: Scene) -> None:
    scene.redis.hdel(scene.keys.job(scene.expired), "expires_ms")


def another_text(scene: Scene) -> None:
    request = json.loads(scene.get(scene.spoken, "request"))
    scene.set(scene.spoken, request=json.dumps({**request, "text": "Job 1 says this."}))


def two_jobs_of_one_key(scene: Scene) -> None:
    submission = scene.evidence.submissions[1]
    scene.succeed(scene.submit(1))
    scene.evidence.submissions[1] = submission


def answered_to_two_submissions(scene: Scene) -> None:
    scene.evidence.note_accepted(scene.spoken, Submission(5, "Somebody else's."))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (other_bytes_of_the_same_tone, "other bytes"),
        (audio_of_another_job, "another job's audio"),
        (shorter_audio, "samples at"),
        (no_wav_file, "no WAV file"),
        (missing_object, "has no object"),
        (record_names_an_older_lease, "not the object of its last lease"),
        (two_objects_of_one_lease, "is seen twice"),
        (object_of_a_lease_that_never_was, "of a lease that never was"),
        (object_of_no_job, "an object of no job"),
        (lost_record, "is lost"),
        (failed_with_a_result, "no single end"),
        (succeeded_with_an_error, "no single end"),
        (succeeded_without_a_result, "no single end"),
        (status_changed_after_clients_saw_it, "clients saw it end as"),
        (running_after_its_end, "is running again"),
        (waits_for_ever, "is stuck: queued"),
        (leased_for_ever, "it is still due or leased"),
        (ended_and_still_due, "it is still due or leased"),
        (ended_and_still_leased, "no single end"),
        (message_left, "1 messages in"),
        (too_many_attempts, "has 4 attempts of 3"),
        (succeeded_without_an_attempt, "has 0 attempts of 3"),
        (failed_by_the_service, "failed after 1 attempts"),
        (poison_too_early, "failed after 1 attempts"),
        (cancelled_without_being_asked, "no client asked for it"),
        (accepted_cancel_without_effect, "its cancelling was answered"),
        (expired_before_its_time, "expired before its time"),
        (expired_without_a_time, "expired before its time"),
        (another_text, "nothing that a client has sent"),
        (two_jobs_of_one_key, "seen twice: 2 jobs"),
        (answered_to_two_submissions, "answers submissions 0 and 5"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_damage_is_told(damage: Callable[[Scene], None], complaint: str, scene: Scene) -> None:
    damage(scene)
    told = [*scene.judge().complaints, *scene.evidence.problems]
    assert any(complaint in line for line in told), told


def test_change_between_two_readings_is_told(scene: Scene) -> None:
    """The audio is read in between: there the record is changed, as a late worker would."""
    read = scene.store.read

    class Meddling(Store):
        def read(self, key: str) -> bytes:
            scene.set(scene.spoken, started_ms=1)
            return read(key)

    scene.store = Meddling(scene.store.client, scene.store.bucket, scene.store.prefix)
    assert f"{scene.spoken} changed after its end" in scene.judge().complaints


def test_object_of_a_lost_lease_is_counted_not_judged(scene: Scene) -> None:
    """A worker that dies between upload and ledger leaves one, and nobody can see it."""
    scene.write(f"audio/{scene.spoken}/0.wav", b"half")
    verdict = scene.judge()
    assert verdict.complaints == []
    assert verdict.num_unreferenced == 1


def test_submission_whose_answer_was_lost_may_exist_but_must_be_sound(scene: Scene) -> None:
    job_id = scene.submit(9)
    del scene.evidence.accepted[job_id]
    assert f"{job_id} is stuck: queued" in scene.judge().complaints
    assert scene.ledger.cancel(job_id) is CancelOutcome.CANCELLED
    verdict = scene.judge()
    assert verdict.complaints == []
    assert verdict.num_unanswered == 1
