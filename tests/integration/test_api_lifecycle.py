"""Looking at jobs, waiting for them, cancelling them and fetching their audio."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from api_service import AUDIO, assert_problem, build_app, fail_job, start_job, submit, succeed_job
from flask.testing import FlaskClient

from api import wsgi
from worker.jobs.settings import Settings
from worker.jobs.storage import ObjectStore


@pytest.fixture
def client(settings: Settings) -> FlaskClient:
    return build_app(settings).test_client()


# -- look and wait -----------------------------------------------------------------------------------------------------


def test_succeeded_job(client: FlaskClient, settings: Settings) -> None:
    job_id = submit(client)
    result = succeed_job(settings, job_id)
    answer = client.get(f"/v1/jobs/{job_id}")
    job = answer.get_json()
    assert job["status"] == "succeeded"
    assert job["attempts"] == 1
    assert job["created_at"] <= job["started_at"] <= job["finished_at"]
    assert job["links"]["audio"] == f"/v1/jobs/{job_id}/audio"
    assert {**job["result"], "audio_url": None} == result.model_dump(mode="json")
    assert httpx.get(job["result"]["audio_url"]).content == AUDIO
    assert "Retry-After" not in answer.headers
    assert answer.headers["Cache-Control"] == "no-store"


def test_the_request_is_given_back_without_what_was_not_asked_for(client: FlaskClient) -> None:
    job_id = submit(client, text="Hello there.", num_step=8)
    request = client.get(f"/v1/jobs/{job_id}").get_json()["request"]
    expected = {"text": "Hello there.", "num_step": 8, "format": "wav", "sample_rate": 24000, "queue": "interactive"}
    assert request == expected | {"metadata": {}, "normalize_text": False}


def test_failed_job_says_why(client: FlaskClient, settings: Settings) -> None:
    job_id = submit(client)
    fail_job(settings, job_id)
    job = client.get(f"/v1/jobs/{job_id}").get_json()
    assert job["status"] == "failed"
    assert job["error"]["detail"] == "the audio is silent"
    assert job["result"] is None


def test_wait_returns_when_the_job_ends(client: FlaskClient, settings: Settings) -> None:
    job_id = submit(client)
    start_job_later = threading.Timer(0.5, succeed_job, (settings, job_id))
    start_job_later.start()
    started = time.monotonic()
    answer = client.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=30"})
    start_job_later.join()
    assert answer.get_json()["status"] == "succeeded"
    assert answer.headers["Preference-Applied"] == "wait=30"
    assert 0.3 < time.monotonic() - started < 10


def test_wait_ends_in_time(client: FlaskClient) -> None:
    job_id = submit(client)
    started = time.monotonic()
    answer = client.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=1"})
    assert 0.95 < time.monotonic() - started < 5
    assert answer.status_code == 200
    assert answer.get_json()["status"] == "queued"
    assert answer.headers["Preference-Applied"] == "wait=1"
    assert "Retry-After" in answer.headers


def test_no_wait_unless_asked(client: FlaskClient) -> None:
    answer = client.get(f"/v1/jobs/{submit(client)}", headers={"Prefer": "respond-async"})
    assert answer.status_code == 200
    assert "Preference-Applied" not in answer.headers


@pytest.mark.parametrize(("prefer", "status"), [("wait=abc", 400), ("wait=61", 422), ("wait=99999999999", 422)])
def test_bad_wait(client: FlaskClient, prefer: str, status: int) -> None:
    assert_problem(client.get(f"/v1/jobs/{submit(client)}", headers={"Prefer": prefer}), status, "Prefer")


def test_long_polls_leave_threads_for_others(settings: Settings) -> None:
    app = build_app(settings.model_copy(update={"api_threads": 2}))
    job_id = submit(app.test_client())

    def poll(_: int) -> bool:
        answer = app.test_client().get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=2"})
        assert answer.get_json()["status"] == "queued"
        return "Preference-Applied" in answer.headers

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(poll, range(2))) == [False, True]


# -- cancel ------------------------------------------------------------------------------------------------------------


def test_cancel_a_queued_job(client: FlaskClient) -> None:
    job_id = submit(client)
    answer = client.delete(f"/v1/jobs/{job_id}")
    assert answer.status_code == 200
    assert answer.get_json()["status"] == "cancelled"
    assert_problem(client.delete(f"/v1/jobs/{job_id}"), 409)
    assert client.get(f"/v1/jobs/{job_id}").get_json()["status"] == "cancelled"


def test_cancel_a_running_job(client: FlaskClient, settings: Settings) -> None:
    job_id = submit(client)
    ledger, claim = start_job(settings, job_id)
    answer = client.delete(f"/v1/jobs/{job_id}")
    assert answer.status_code == 202
    assert answer.get_json()["status"] == "running"
    assert client.get(f"/v1/jobs/{job_id}").get_json()["cancel_requested"] is True
    assert ledger.heartbeat([claim])[job_id] == "cancelled"


def test_cancel_an_ended_job(client: FlaskClient, settings: Settings) -> None:
    job_id = submit(client)
    succeed_job(settings, job_id)
    assert_problem(client.delete(f"/v1/jobs/{job_id}"), 409)
    assert client.get(f"/v1/jobs/{job_id}").get_json()["status"] == "succeeded"


# -- audio -------------------------------------------------------------------------------------------------------------


def test_audio_is_at_the_redirect(client: FlaskClient, settings: Settings) -> None:
    job_id = submit(client)
    succeed_job(settings, job_id)
    answer = client.get(f"/v1/jobs/{job_id}/audio")
    assert answer.status_code == 302
    fetched = httpx.get(answer.headers["Location"])
    assert (fetched.status_code, fetched.content) == (200, AUDIO)
    assert fetched.headers["Content-Type"] == "audio/wav"
    assert f"{job_id}.wav" in fetched.headers["Content-Disposition"]


def test_links_use_the_public_endpoint(settings: Settings) -> None:
    client = build_app(settings.model_copy(update={"s3_public_endpoint": "https://audio.example.org"})).test_client()
    job_id = submit(client)
    succeed_job(settings, job_id)
    location = client.get(f"/v1/jobs/{job_id}/audio").headers["Location"]
    assert location.startswith(f"https://audio.example.org/{settings.s3_bucket}/")


def test_no_audio_yet(client: FlaskClient, settings: Settings) -> None:
    job_id = submit(client)
    answer = client.get(f"/v1/jobs/{job_id}/audio")
    assert_problem(answer, 409)
    assert "Retry-After" in answer.headers
    start_job(settings, job_id)
    assert "running" in assert_problem(client.get(f"/v1/jobs/{job_id}/audio"), 409)["detail"]


def test_no_audio_ever(client: FlaskClient, settings: Settings) -> None:
    job_id = submit(client)
    fail_job(settings, job_id)
    answer = client.get(f"/v1/jobs/{job_id}/audio")
    assert_problem(answer, 409)
    assert "Retry-After" not in answer.headers


def test_audio_after_retention(client: FlaskClient, settings: Settings) -> None:
    job_id = submit(client)
    succeed_job(settings, job_id)
    shorter = build_app(settings.model_copy(update={"retention_hours": 1e-9})).test_client()
    assert_problem(shorter.get(f"/v1/jobs/{job_id}/audio"), 410)
    job = shorter.get(f"/v1/jobs/{job_id}").get_json()
    assert job["status"] == "succeeded"
    assert job["result"]["audio_url"] is None


def test_audio_that_was_deleted_from_the_store_is_gone(client: FlaskClient, settings: Settings) -> None:
    """By a bucket's lifecycle rule, say: not a link that leads to nothing."""
    job_id = submit(client)
    succeed_job(settings, job_id)
    assert client.get(f"/v1/jobs/{job_id}/audio").status_code == 302
    store = ObjectStore(settings)
    store.delete(store.key_of(client.get(f"/v1/jobs/{job_id}").get_json()["result"]["uri"]))
    assert_problem(client.get(f"/v1/jobs/{job_id}/audio"), 410)


@pytest.mark.parametrize("how", ["silent", "unreachable"])
def test_a_store_that_never_answers_is_told_within_three_seconds(
    how: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections are taken and nothing comes back, as from a stopped process or a full SeaweedFS; or none is taken, as
    from a host that has gone."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0 if how == "unreachable" else 99))
        with contextlib.suppress(TimeoutError):
            while how == "unreachable":
                stack.enter_context(socket.create_connection(server.getsockname(), timeout=0.3))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("OMNIVOICE_S3_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        client = wsgi.build().test_client()
        start = time.monotonic()
        problem = assert_problem(client.get("/readyz"), 503)
        assert 2 < time.monotonic() - start < 4, "three, and what a busy machine takes besides"
    assert [error["field"] for error in problem["errors"]] == ["bucket"]
