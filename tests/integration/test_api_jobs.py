"""What a submission promises: 202 is in the ledger and announced, once for a key; a full queue and no Redis say so."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from api_service import assert_problem, build_app, num_messages, submit, succeed_job
from flask.testing import FlaskClient
from redis import Redis

from worker.jobs.ledger import Ledger
from worker.jobs.settings import Settings


@pytest.fixture
def client(settings: Settings) -> FlaskClient:
    return build_app(settings).test_client()


def test_accepted_job_is_in_the_ledger_and_announced(
    client: FlaskClient, settings: Settings, redis_client: Redis
) -> None:
    answer = client.post("/v1/jobs", json={"text": "Good morning.", "num_step": 8, "metadata": {"row": "17"}})
    assert answer.status_code == 202
    job = answer.get_json()
    assert answer.headers["Location"] == f"/v1/jobs/{job['id']}"
    assert int(answer.headers["Retry-After"]) >= 1
    assert job["object"] == "job"
    assert job["status"] == "queued"
    assert job["attempts"] == 0
    assert job["request"]["text"] == "Good morning."
    assert job["request"]["num_step"] == 8
    assert job["metadata"] == {"row": "17"}
    assert job["links"] == {"self": f"/v1/jobs/{job['id']}"}
    assert [job[name] for name in ("started_at", "finished_at", "error", "result", "batch")] == [None] * 5
    assert datetime.fromisoformat(job["created_at"]).tzinfo is not None
    record = Ledger.from_settings(settings).get(job["id"])
    assert record is not None
    assert 0.5 < record.estimate_seconds < 5
    assert num_messages(settings, redis_client) == 1


def test_bulk_has_a_queue_of_its_own(client: FlaskClient, settings: Settings, redis_client: Redis) -> None:
    submit(client, queue="bulk")
    assert (num_messages(settings, redis_client, "bulk"), num_messages(settings, redis_client)) == (1, 0)


def test_duration_is_the_estimate(client: FlaskClient, settings: Settings) -> None:
    record = Ledger.from_settings(settings).get(submit(client, duration=12.0))
    assert record is not None
    assert record.estimate_seconds == pytest.approx(12.0, abs=0.05)


def test_too_large(settings: Settings) -> None:
    client = build_app(settings.model_copy(update={"max_request_bytes": 1024})).test_client()
    problem = assert_problem(client.post("/v1/jobs", json={"text": "a " * 2000}), 413, "body")
    assert problem["detail"] == "body: must have at most 1024 bytes"
    client = build_app(settings).test_client()  # JSON has a bound of its own
    problem = assert_problem(client.post("/v1/jobs", json={"text": "a " * 2**19}), 413, "body")
    assert problem["detail"] == f"body: must have at most {2**20} bytes"


def test_full_queue(settings: Settings, redis_client: Redis) -> None:
    client = build_app(settings.model_copy(update={"max_queue": 2})).test_client()
    first, second = submit(client), submit(client, queue="bulk")
    answer = client.post("/v1/jobs", json={"text": "One too many."})
    assert_problem(answer, 429)
    assert int(answer.headers["Retry-After"]) >= 1
    assert client.delete(f"/v1/jobs/{first}").status_code == 200
    submit(client)
    assert second


def test_twenty_clients_at_once_get_each_their_own(client: FlaskClient) -> None:
    app = client.application

    def round_trip(number: int) -> tuple[str, str, str]:
        own = app.test_client()
        job_id = submit(own, text=f"I am client number {number}.")
        return job_id, f"I am client number {number}.", own.get(f"/v1/jobs/{job_id}").get_json()["request"]["text"]

    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(round_trip, range(20)))
    assert len({job_id for job_id, _, _ in results}) == 20
    assert all(sent == stored for _, sent, stored in results)


# -- idempotency -------------------------------------------------------------------------------------------------------


def test_same_key_and_body_is_the_same_job(client: FlaskClient, settings: Settings, redis_client: Redis) -> None:
    headers = {"Idempotency-Key": "order-1"}
    first = client.post(
        "/v1/jobs", data='{"text": "Hi there.", "speed": 1.5}', headers=headers, content_type="application/json"
    )
    again = client.post(
        "/v1/jobs", data='{"speed":1.5,"text":"Hi there."}', headers=headers, content_type="application/json"
    )
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.get_json() == again.get_json()
    assert first.headers["Location"] == again.headers["Location"]
    assert num_messages(settings, redis_client) == 1


def test_a_repeated_call_tells_how_the_job_is_now(client: FlaskClient, settings: Settings) -> None:
    headers = {"Idempotency-Key": "order-2"}
    first = client.post("/v1/jobs", json={"text": "Hi there."}, headers=headers).get_json()
    succeed_job(settings, first["id"])
    again = client.post("/v1/jobs", json={"text": "Hi there."}, headers=headers).get_json()
    assert (again["id"], again["status"]) == (first["id"], "succeeded")


def test_same_key_with_another_body(client: FlaskClient) -> None:
    headers = {"Idempotency-Key": "order-3"}
    assert client.post("/v1/jobs", json={"text": "Hi there."}, headers=headers).status_code == 202
    problem = assert_problem(client.post("/v1/jobs", json={"text": "Bye."}, headers=headers), 422, "Idempotency-Key")
    assert problem["type"] == "urn:omnivoice:idempotency-conflict"


def test_other_keys_and_no_key_make_other_jobs(client: FlaskClient) -> None:
    bodies = [
        client.post("/v1/jobs", json={"text": "Hi."}, headers=h).get_json()
        for h in ({"Idempotency-Key": "a"}, {"Idempotency-Key": "b"}, {}, {})
    ]
    assert len({body["id"] for body in bodies}) == 4


def test_malformed_key(client: FlaskClient) -> None:
    answer = client.post("/v1/jobs", json={"text": "Hi."}, headers={"Idempotency-Key": "a b"})
    assert_problem(answer, 400, "Idempotency-Key")


def test_racing_calls_with_one_key_make_one_job(client: FlaskClient, settings: Settings, redis_client: Redis) -> None:
    app = client.application
    barrier = threading.Barrier(8)

    def submit(_: int) -> str:
        barrier.wait()
        answer = app.test_client().post("/v1/jobs", json={"text": "Hi."}, headers={"Idempotency-Key": "race"})
        return str(answer.get_json()["id"])

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(submit, range(8)))) == 1
    assert num_messages(settings, redis_client) == 1


# -- when parts are gone -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"), [("POST", ""), ("GET", "/job_" + "0" * 32), ("DELETE", "/job_" + "0" * 32)]
)
def test_no_redis(settings: Settings, method: str, path: str) -> None:
    client = build_app(settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})).test_client()
    body = {"json": {"text": "Hi there."}} if method == "POST" else {}
    answer = client.open(f"/v1/jobs{path}", method=method, **body)
    problem = assert_problem(answer, 503)
    assert "Redis" in problem["detail"]
    assert int(answer.headers["Retry-After"]) >= 1
