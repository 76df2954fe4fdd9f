"""One job followed through the logs of API and worker: by its id, its attempt, its window and its trace."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from api_processes import run_api
from api_service import build_app
from flask.testing import FlaskClient
from servers import wait_until
from workers import run_worker

from worker.jobs.settings import Settings

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
def client(settings: Settings) -> FlaskClient:
    return build_app(settings).test_client()


def test_a_trace_from_the_clients_header_to_the_upload(environment: dict[str, str], tmp_path: Path) -> None:
    text = "Follow me through the night."
    with (
        run_worker(environment, tmp_path / "worker.log") as worker,
        run_api(environment, tmp_path) as api,
        httpx.Client(base_url=api.url, timeout=30) as client,
    ):
        answer = client.post("/v1/jobs", json={"text": text}, headers={"traceparent": TRACEPARENT})
        job_id = answer.json()["id"]
        assert answer.json()["trace_id"] == TRACE
        job = client.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=20"}).json()
        assert (job["status"], job["trace_id"]) == ("succeeded", TRACE)
        wait_until(lambda: worker.has_logged("succeeded"), what="the worker's last line")
        [submission] = [line for line in api.lines() if line.get("method") == "POST"]
        lines = worker.lines()
    assert (submission["job"], submission["trace_id"], submission["status"]) == (job_id, TRACE, 202)
    of_job = [line for line in lines if line.get("job") == job_id]
    assert [line["event"] for line in of_job] == ["started", "uploaded", "succeeded"]
    for line in of_job:
        assert (line["attempt"], line["trace_id"]) == (1, TRACE)
    [window] = {line["window"] for line in of_job}
    [closed] = [line for line in lines if line["event"] == "window closed"]
    assert (closed["window"], closed["reason"], closed["jobs"]) == (window, "max_wait", 1)
    assert of_job[1]["bytes"] == job["result"]["bytes"]
    assert text not in api.log.read_text() + worker.log_file.read_text()


def test_the_answer_names_the_trace_in_a_span_of_its_own(client: FlaskClient) -> None:
    answer = client.get("/livez", headers={"traceparent": TRACEPARENT})
    found = re.fullmatch(rf"00-{TRACE}-([0-9a-f]{{16}})-01", answer.headers["traceresponse"])
    assert found
    assert found[1] != "00f067aa0ba902b7"
    assert TRACE in client.get("/v1/none", headers={"traceparent": TRACEPARENT}).headers["traceresponse"]


@pytest.mark.parametrize("headers", [{}, {"traceparent": "00-nonsense"}, {"traceparent": TRACEPARENT.upper()}])
def test_a_job_without_a_callers_trace_gets_one(client: FlaskClient, headers: dict[str, str]) -> None:
    answers = [client.post("/v1/jobs", json={"text": "Good morning."}, headers=headers) for _ in range(2)]
    traces = {answer.get_json()["trace_id"] for answer in answers}
    assert len(traces) == 2
    for answer in answers:
        assert answer.status_code == 202
        assert re.fullmatch("[0-9a-f]{32}", answer.get_json()["trace_id"])
        assert answer.headers["traceresponse"].split("-")[1] == answer.get_json()["trace_id"]


def test_a_repeated_submission_names_the_first_ones_trace(client: FlaskClient) -> None:
    first, again = (
        client.post("/v1/jobs", json={"text": "Good morning."}, headers={"Idempotency-Key": "k"}) for _ in range(2)
    )
    assert again.get_json()["trace_id"] == first.get_json()["trace_id"]
    assert again.headers["traceresponse"] != first.headers["traceresponse"]
