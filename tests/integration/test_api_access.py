"""Keys, other origins, other hosts, health, and errors that no view raises."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path

import pytest
from api_service import assert_problem, build_app, succeed_job
from flask.testing import FlaskClient
from redis import Redis
from servers import free_ports, run_redis

from api.keys import new_key
from api.logs import JsonFormatter, logging_config
from worker.jobs import names
from worker.jobs.outages import OncePerOutage
from worker.jobs.settings import Settings

ORIGIN = "https://console.example.org"


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    """Keys of two owners; their file lies at `tmp_path / "keys.json"`."""
    made = {name: new_key(name) for name in ("anna", "ben")}
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [asdict(entry) for _, entry in made.values()]}))
    return {name: token for name, (token, _) in made.items()}


@pytest.fixture
def guarded(settings: Settings, tokens: dict[str, str], tmp_path: Path) -> FlaskClient:
    update = {"api_keys_file": str(tmp_path / "keys.json"), "cors_origins": ORIGIN}
    return build_app(settings.model_copy(update=update)).test_client()


@pytest.fixture
def open_client(settings: Settings) -> FlaskClient:
    return build_app(settings.model_copy(update={"cors_origins": ORIGIN})).test_client()


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# -- keys --------------------------------------------------------------------------------------------------------------


def test_without_a_known_key(guarded: FlaskClient) -> None:
    calls = (("POST", "/v1/jobs"), ("GET", "/v1/jobs/job_1"), ("DELETE", "/v1/jobs/job_1"), ("GET", "/v1/none"))
    for authorization in (None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic YTpi", "Bearer tök", "anna"):
        headers = {} if authorization is None else {"Authorization": authorization}
        for method, path in calls:
            answer = guarded.open(path, method=method, headers=headers)
            assert_problem(answer, 401)
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_every_key_of_the_file_is_let_in(guarded: FlaskClient, tokens: dict[str, str]) -> None:
    for token in tokens.values():
        assert guarded.post("/v1/jobs", json={"text": "Hi there."}, headers=_bearer(token)).status_code == 202


def test_another_keys_job_does_not_exist(guarded: FlaskClient, tokens: dict[str, str], settings: Settings) -> None:
    headers = _bearer(tokens["anna"])
    job_id = guarded.post("/v1/jobs", json={"text": "Hi there."}, headers=headers).get_json()["id"]
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/audio")):
        url = f"/v1/jobs/{job_id}{path}"
        others = assert_problem(guarded.open(url, method=method, headers=_bearer(tokens["ben"])), 404)
        nobodys = guarded.open(f"/v1/jobs/job_{'0' * 32}{path}", method=method, headers=_bearer(tokens["ben"]))
        assert others == assert_problem(nobodys, 404)
    succeed_job(settings, job_id)
    assert guarded.get(f"/v1/jobs/{job_id}", headers=headers).get_json()["status"] == "succeeded"


def test_idempotency_keys_of_two_owners_do_not_meet(guarded: FlaskClient, tokens: dict[str, str]) -> None:
    ids = set()
    for name, text in (("anna", "Hi there."), ("ben", "Something else.")):
        headers = {**_bearer(tokens[name]), "Idempotency-Key": "1"}
        answer = guarded.post("/v1/jobs", json={"text": text}, headers=headers)
        assert answer.status_code == 202
        ids.add(answer.get_json()["id"])
    assert len(ids) == 2


def test_open_to_all(guarded: FlaskClient) -> None:
    for path in ["/livez", "/readyz", "/openapi.json", "/docs", "/"]:
        assert guarded.get(path).status_code in (200, 302)


# -- other origins -----------------------------------------------------------------------------------------------------


def test_preflight_needs_no_key(guarded: FlaskClient) -> None:
    asked = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    answer = guarded.options("/v1/jobs", headers=asked)
    assert answer.status_code == 204
    assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert {"POST", "DELETE", "GET"} <= set(answer.headers["Access-Control-Allow-Methods"].split(", "))
    allowed = answer.headers["Access-Control-Allow-Headers"].lower()
    assert all(name in allowed for name in ("authorization", "content-type", "idempotency-key", "prefer"))
    assert "Origin" in answer.headers["Vary"]


def test_errors_carry_the_headers_too(guarded: FlaskClient, tokens: dict[str, str]) -> None:
    key = _bearer(tokens["anna"])
    answers = [
        guarded.post("/v1/jobs", headers={"Origin": ORIGIN}),
        guarded.get("/v1/jobs/none", headers={"Origin": ORIGIN, **key}),
        guarded.put("/v1/jobs", headers={"Origin": ORIGIN, **key}),
        guarded.post("/v1/jobs", json={"text": ""}, headers={"Origin": ORIGIN, **key}),
        guarded.post("/v1/jobs", data="{", content_type="application/json", headers={"Origin": ORIGIN, **key}),
    ]
    assert [answer.status_code for answer in answers] == [401, 404, 405, 422, 400]
    for answer in answers:
        assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert "Retry-After" in answer.headers["Access-Control-Expose-Headers"]


def test_origins_off_the_list_get_nothing(guarded: FlaskClient) -> None:
    for origin in ("https://evil.example.org", "null", f"{ORIGIN}.evil.org", f"{ORIGIN}:8443"):
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        for answer in (guarded.get("/livez", headers=asked), guarded.options("/v1/jobs", headers=asked)):
            assert not [name for name, _ in answer.headers if name.startswith("Access-Control")]


# -- a service without keys --------------------------------------------------------------------------------------------


def test_names_of_this_machine(open_client: FlaskClient) -> None:
    for host in ("localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080"):
        assert open_client.get("/livez", headers={"Host": host}).status_code == 200


def test_names_of_other_machines_are_refused_without_keys(open_client: FlaskClient, guarded: FlaskClient) -> None:
    for host in ("rebound.example.org", "rebound.example.org:80", "10.0.0.1", "[::1", "localhost.evil.org", ""):
        assert_problem(open_client.get("/v1/jobs/job_1", headers={"Host": host}), 421)
    assert guarded.get("/livez", headers={"Host": "api.example.org"}).status_code == 200


def test_pages_of_other_origins_cannot_submit_without_keys(open_client: FlaskClient) -> None:
    def submit(origin: str) -> int:
        form = {"request": '{"text": "Hi there."}'}  # a form needs no preflight, so CORS alone would not stop it
        return open_client.post(
            "/v1/jobs", data=form, content_type="multipart/form-data", headers={"Origin": origin}
        ).status_code

    assert submit("https://evil.example.org") == 403
    assert submit("null") == 403
    assert submit(ORIGIN) == 202
    assert submit("http://localhost") == 202


# -- health ------------------------------------------------------------------------------------------------------------


def test_live_and_ready(open_client: FlaskClient) -> None:
    assert open_client.get("/livez").get_json() == {"status": "ok"}
    answer = open_client.get("/readyz")
    assert (answer.status_code, answer.get_json()) == (200, {"status": "ready"})
    assert answer.headers["Cache-Control"] == "no-store"


def test_not_ready_without_a_bucket(settings: Settings) -> None:
    client = build_app(settings.model_copy(update={"s3_bucket": "no-such-bucket"})).test_client()
    answer = client.get("/readyz")
    problem = assert_problem(answer, 503, "bucket")
    assert [error["field"] for error in problem["errors"]] == ["bucket"]
    assert int(answer.headers["Retry-After"]) >= 1
    assert client.get("/livez").status_code == 200


def test_ready_again_when_redis_is_back(settings: Settings, tmp_path: Path) -> None:
    port = free_ports(1)[0]
    client = build_app(settings.model_copy(update={"redis_url": f"redis://127.0.0.1:{port}/0"})).test_client()
    assert_problem(client.get("/readyz"), 503, "redis")
    assert client.get("/livez").status_code == 200
    with run_redis(tmp_path, port):
        assert client.get("/readyz").status_code == 200
        assert client.post("/v1/jobs", json={"text": "Hi there."}).status_code == 202
    assert_problem(client.get("/readyz"), 503, "redis")
    assert_problem(client.post("/v1/jobs", json={"text": "Hi there."}), 503)


# -- errors that no view raises ----------------------------------------------------------------------------------------


def test_unknown_path(open_client: FlaskClient) -> None:
    for path in ("/none", "/v1/none", "/v1/jobs/", "/v1//jobs", "/static/x"):
        problem = assert_problem(open_client.get(path), 404)
        assert problem["detail"] == f"there is no {path}; /openapi.json tells what there is"
    long = "/v1/" + "x" * 5_000
    assert len(assert_problem(open_client.get(long), 404)["detail"]) < 200


def test_wrong_method_names_the_right_ones(open_client: FlaskClient) -> None:
    answer = open_client.put("/v1/jobs")
    problem = assert_problem(answer, 405)
    assert problem["detail"] == "PUT is not allowed for /v1/jobs; allowed: OPTIONS, POST"
    assert "POST" in answer.headers["Allow"]
    for path, allowed in (("/livez", "GET, HEAD, OPTIONS"), ("/v1/jobs/job_1", "DELETE, GET, HEAD, OPTIONS")):
        problem = assert_problem(open_client.post(path), 405)
        assert problem["detail"] == f"POST is not allowed for {path}; allowed: {allowed}"


def test_a_fault_of_ours_is_told_and_logged_without_the_text(
    open_client: FlaskClient, settings: Settings, redis_client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = open_client.post("/v1/jobs", json={"text": "Hi there."}).get_json()["id"]
    # A record that no release wrote; the error of reading it quotes it.
    redis_client.hset(names.job_key(settings.redis_prefix, job_id), "status", "my secret diary")
    with caplog.at_level(logging.INFO):
        answer = open_client.get(f"/v1/jobs/{job_id}", headers={"Authorization": "Bearer s3cr3t"})
    assert_problem(answer, 500)
    assert "secret" not in answer.text
    lines = [JsonFormatter().format(record) for record in caplog.records]
    assert all("secret diary" not in line and "s3cr3t" not in line for line in lines)
    assert all(len(line.splitlines()) == 1 for line in lines)
    faults = [json.loads(line) for line in lines if json.loads(line)["level"] == "error"]
    assert [fault["exception"] for fault in faults] == ["ValueError"]
    assert any("api/jobs.py" in frame for frame in faults[0]["frames"])


def test_one_log_line_a_request(open_client: FlaskClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "api.access"):
        open_client.get("/v1/jobs/job_1?token=abc")
    (line,) = [json.loads(JsonFormatter().format(record)) for record in caplog.records if record.name == "api.access"]
    assert (line["method"], line["route"], line["status"]) == ("GET", "/v1/jobs/<job_id>", 404)
    assert "abc" not in json.dumps(line)


def test_log_line_of_a_submission_names_its_job(open_client: FlaskClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "api.access"):
        job_id = open_client.post("/v1/jobs", json={"text": "Hi there."}).get_json()["id"]
        open_client.post("/v1/jobs", json={"text": ""})
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records if record.name == "api.access"]
    assert [line["job"] for line in lines] == [job_id, None]


def test_each_outage_is_told_once() -> None:
    passes = OncePerOutage().filter

    def record(seconds: float, **extra: str) -> logging.LogRecord:
        made = logging.makeLogRecord({"msg": "gone", **extra})
        made.created = seconds
        return made

    assert [passes(record(seconds, outage="redis")) for seconds in (0.0, 20.0, 45.0, 76.0)] == [
        True,
        False,
        False,
        True,
    ]
    assert passes(record(76.5, outage="store")), "another server's outage is its own"
    assert all(passes(record(77.0)) for _ in range(3))


def test_the_end_of_an_outage_is_told_once() -> None:
    passes = OncePerOutage().filter

    def told(seconds: float, **extra: str) -> bool:
        made = logging.makeLogRecord({"msg": "gone, or back", **extra})
        made.created = seconds
        return passes(made)

    assert not told(0.0, recovery="redis"), "nobody has complained"
    assert told(1.0, outage="redis")
    assert told(1.5, outage="redis: messages")
    assert not told(2.0, recovery="store")
    assert [told(seconds, recovery="redis") for seconds in (3.0, 3.5)] == [True, False]
    assert not told(7.0, outage="redis: messages"), "a call that was under way when Redis came back"
    assert not told(8.0, recovery="redis")
    assert told(10.0, outage="redis"), "away again, and soon"
    assert told(11.0, recovery="redis")


def test_browsers_do_not_guess_types(open_client: FlaskClient) -> None:
    for path in ("/livez", "/docs", "/none"):
        assert open_client.get(path).headers["X-Content-Type-Options"] == "nosniff"


def test_debug_logging_leaves_other_libraries_quiet() -> None:
    config = logging_config("debug")
    assert config["loggers"]["api"]["level"] == "DEBUG"
    assert config["root"]["level"] == "WARNING"
    assert not {"botocore", "urllib3", "kombu"} & set(config["loggers"])
