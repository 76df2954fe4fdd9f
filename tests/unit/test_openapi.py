"""The OpenAPI document is valid, and says what the application does."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from flask import Flask
from openapi_spec_validator import OpenAPIV31SpecValidator

from api.app import create_app
from api.openapi import build_openapi
from omnivoice.parameters import BOUNDS
from worker.jobs.ledger import Ledger
from worker.jobs.models import JobRequest
from worker.jobs.settings import Settings
from worker.jobs.storage import ObjectStore

_UNDESCRIBED = {"/", "/docs", "/openapi.json", "/metrics"}


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Flask:
    """Over addresses where nothing listens: the description must not need them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    settings = Settings(redis_url="redis://127.0.0.1:1/0", s3_endpoint="http://127.0.0.1:1")
    return create_app(settings, Ledger.from_settings(settings), ObjectStore(settings))


@pytest.mark.parametrize("keys_needed", [True, False])
def test_document_is_valid_openapi(keys_needed: bool) -> None:
    document = build_openapi(keys_needed=keys_needed)
    OpenAPIV31SpecValidator(json.loads(json.dumps(document))).validate()
    assert document["openapi"].startswith("3.1")


def test_served_document_is_the_built_one(app: Flask) -> None:
    answer = app.test_client().get("/openapi.json")
    assert answer.status_code == 200
    assert answer.mimetype == "application/json"
    OpenAPIV31SpecValidator(answer.get_json()).validate()
    assert answer.get_json() == json.loads(json.dumps(build_openapi(keys_needed=False)))


def test_every_route_is_described_and_nothing_else(app: Flask) -> None:
    served = {
        (re.sub(r"<(?:job_)?(\w+)>", r"{\1}", rule.rule), method.lower())
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        if rule.rule not in _UNDESCRIBED
    }
    paths: dict[str, Any] = build_openapi(keys_needed=True)["paths"]
    assert {(path, method) for path, item in paths.items() for method in item} == served


def test_request_schema_is_the_model() -> None:
    schema = build_openapi(keys_needed=True)["components"]["schemas"]["JobRequest"]
    assert set(schema["properties"]) == set(JobRequest.model_fields)
    assert schema["required"] == ["text"]
    assert schema["additionalProperties"] is False
    number = next(item for item in schema["properties"]["num_step"]["anyOf"] if item["type"] == "integer")
    assert (number["minimum"], number["maximum"]) == BOUNDS["num_step"]


def test_errors_are_described_as_problems() -> None:
    for path, item in build_openapi(keys_needed=True)["paths"].items():
        for operation in item.values():
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    assert list(answer["content"]) == ["application/problem+json"], path


def test_the_refusal_of_a_compressed_body_is_described() -> None:
    answer = build_openapi(keys_needed=True)["paths"]["/v1/jobs"]["post"]["responses"]["415"]
    assert "Content-Encoding" in answer["description"]
    assert {"Accept", "Accept-Encoding"} <= set(answer["headers"])


def test_guarded_calls_ask_for_the_key() -> None:
    for path, item in build_openapi(keys_needed=True)["paths"].items():
        for operation in item.values():
            assert ("security" in operation) == path.startswith("/v1/")
            assert ("401" in operation["responses"]) == path.startswith("/v1/")


def test_page_shows_every_call_and_loads_nothing(app: Flask) -> None:
    answer = app.test_client().get("/docs")
    assert answer.status_code == 200
    assert answer.mimetype == "text/html"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    page = answer.text
    for item in build_openapi(keys_needed=False)["paths"].values():
        for operation in item.values():
            assert f'id="{operation["operationId"]}"' in page
    assert "num_step" in page
    assert "integer, ≥ 1, ≤ 128" in page
    assert "one of interactive, bulk" in page
    assert not re.search(r"<script|<link|<img|src=|https?://", page)


def test_root_leads_to_the_page(app: Flask) -> None:
    answer = app.test_client().get("/")
    assert answer.status_code == 302
    assert answer.headers["Location"] == "/docs"
