"""`/metrics` of the API: what it says, who may read it, and several processes that count together."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import httpx
import psutil
import pytest
from api_processes import run_api
from api_service import assert_problem, build_app, fail_job, submit, succeed_job
from flask.testing import FlaskClient
from metrics import assert_conventional, value
from servers import free_ports

from api.keys import new_key
from worker.jobs.errors import StartupError
from worker.jobs.settings import Settings

NUM_CALLS = 60


@pytest.fixture
def client(settings: Settings) -> FlaskClient:
    return build_app(settings).test_client()


def test_jobs_and_requests_are_counted(client: FlaskClient, settings: Settings) -> None:
    before = client.get("/metrics").text
    succeed_job(settings, submit(client))
    fail_job(settings, submit(client))
    submit(client, queue="bulk")
    client.get("/v1/jobs/job_none")
    client.post("/v1/jobs", json={})
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert answer.headers["Cache-Control"] == "no-store"
    text = answer.text
    assert value(text, "omnivoice_ledger_up") == 1
    assert value(text, "omnivoice_queue_jobs", queue="bulk", state="waiting") == 1
    assert value(text, "omnivoice_queue_jobs", queue="interactive", state="waiting") == 0
    assert 0 < value(text, "omnivoice_queue_oldest_job_age_seconds", queue="bulk") < 60
    assert value(text, "omnivoice_queue_oldest_job_age_seconds", queue="interactive") == 0
    assert value(text, "omnivoice_jobs_submitted_total", queue="interactive") == 2
    for status in ("succeeded", "failed"):
        assert value(text, "omnivoice_jobs_ended_total", queue="interactive", status=status) == 1
    assert value(text, "omnivoice_job_attempts_total", queue="interactive") == 2

    def grown(method: str, route: str, status: int) -> float:
        labels = {"method": method, "route": route, "status": str(status)}
        name = "omnivoice_http_requests_total"
        return value(text, name, **labels) - value(before, name, **labels)

    assert grown("POST", "/v1/jobs", 202) == 3
    assert grown("POST", "/v1/jobs", 422) == 1
    assert grown("GET", "/v1/jobs/<job_id>", 404) == 1
    assert_conventional(text)


def test_labels_are_not_chosen_by_clients(client: FlaskClient) -> None:
    client.open("/v1/jobs", method="BREW")
    client.get("/some/path/of/a/scanner")
    text = client.get("/metrics").text
    assert "BREW" not in text
    assert "scanner" not in text
    assert value(text, "omnivoice_http_requests_total", method="other", route="unmatched", status="405") >= 1
    assert value(text, "omnivoice_http_requests_total", method="GET", route="unmatched", status="404") >= 1


def test_long_polls_are_not_in_the_times(client: FlaskClient, settings: Settings) -> None:
    labels = {"method": "GET", "route": "/v1/jobs/<job_id>"}
    name = "omnivoice_http_request_duration_seconds_count"
    job_id = submit(client)
    before = value(client.get("/metrics").text, name, **labels)
    client.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=0"})
    assert value(client.get("/metrics").text, name, **labels) == before
    client.get(f"/v1/jobs/{job_id}")
    assert value(client.get("/metrics").text, name, **labels) == before + 1


def test_an_outage_of_redis_is_a_value(settings: Settings) -> None:
    [port] = free_ports(1)
    client = build_app(settings.model_copy(update={"redis_url": f"redis://127.0.0.1:{port}/0"})).test_client()
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert value(answer.text, "omnivoice_ledger_up") == 0
    assert "omnivoice_queue_jobs" not in answer.text, "an unknown number is not 0"
    assert "omnivoice_http_requests_total" in answer.text


def test_a_key_is_needed_where_keys_are(settings: Settings, tmp_path: Path) -> None:
    keys = {name: new_key(name) for name in ("anna", "prometheus")}
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [asdict(entry) for _, entry in keys.values()]}))

    def read(client: FlaskClient, name: str) -> int:
        return client.get("/metrics", headers={"Authorization": f"Bearer {keys[name][0]}"}).status_code

    guarded = settings.model_copy(update={"api_keys_file": str(file)})
    client = build_app(guarded).test_client()
    assert_problem(client.get("/metrics"), 401)
    assert [read(client, name) for name in keys] == [200, 200]

    narrow = build_app(guarded.model_copy(update={"metrics_readers": "prometheus"})).test_client()
    assert_problem(narrow.get("/metrics"), 401)
    assert read(narrow, "prometheus") == 200
    denied = narrow.get("/metrics", headers={"Authorization": f"Bearer {keys['anna'][0]}"})
    assert_problem(denied, 403)
    with pytest.raises(StartupError, match=r"OMNIVOICE_METRICS_READERS: .*'nobody'"):
        build_app(guarded.model_copy(update={"metrics_readers": "prometheus, nobody"}))


def test_names_of_other_machines_are_refused_without_keys(client: FlaskClient) -> None:
    assert_problem(client.get("/metrics", headers={"Host": "rebound.example.org"}), 421)


def test_several_processes_count_together(environment: dict[str, str], tmp_path: Path) -> None:
    with run_api({**environment, "OMNIVOICE_API_WORKERS": "2"}, tmp_path) as api:
        parent = psutil.Process(api.process.pid)
        folder = Path(parent.environ()["PROMETHEUS_MULTIPROC_DIR"])

        def call(_: int) -> int:
            return httpx.get(f"{api.url}/v1/jobs/job_none").status_code  # a connection each: any process may take it

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(call, range(NUM_CALLS))) == {404}
        labels = {"method": "GET", "route": "/v1/jobs/<job_id>", "status": "404"}
        for _ in range(4):  # whichever process answers
            text = httpx.get(f"{api.url}/metrics").text
            assert value(text, "omnivoice_http_requests_total", **labels) == NUM_CALLS
        assert {line["pid"] for line in api.lines() if line.get("status") == 404} <= {
            child.pid for child in parent.children()
        }
        assert folder.is_dir()
    assert not folder.exists()
