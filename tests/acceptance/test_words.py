"""What is asked for over HTTP is what an independent recogniser hears in the object that S3 holds."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from api_processes import run_api
from workers import run_worker

from bench.accuracy.texts import SHORT, utterances
from bench.accuracy.words import Recogniser, word_errors, words
from infra.local.environment import DEMO_CHECKPOINT

NUM_SENTENCES = 10
MOST_WRONG = 0.15
"""Of 66 words: with six sets of seeds 4 to 6 were wrong."""
JOB_SECONDS = 60.0
DEADLINE_SECONDS = 4
"""Of a step. All steps of a long text take longer."""

pytestmark = [pytest.mark.redis, pytest.mark.s3]


def test_ten_sentences_are_understood(environment: dict[str, str], tmp_path: Path) -> None:
    wanted = utterances(SHORT)[:NUM_SENTENCES]
    engine = {"synthesizer": "engine", "model": DEMO_CHECKPOINT, "device": "cpu"}
    engine |= {"batch_deadline_seconds": DEADLINE_SECONDS}
    with (
        run_api(environment, tmp_path) as api,
        run_worker(environment, tmp_path / "worker.log", **engine),
        httpx.Client(base_url=api.url, timeout=JOB_SECONDS, follow_redirects=True, trust_env=False) as client,
    ):
        jobs = []
        for one in wanted:
            body = {"text": one.text, "language": "en", "instruct": one.instruct, "seed": one.seed}
            jobs.append(client.post("/v1/jobs", json=body).raise_for_status().json())
        audio = []
        for job in jobs:
            ended = client.get(f"/v1/jobs/{job['id']}", headers={"Prefer": "wait=30"}).raise_for_status().json()
            assert ended["status"] == "succeeded", ended
            audio.append(client.get(f"/v1/jobs/{job['id']}/audio").raise_for_status().content)
        assert_much_to_say_is_nothing_that_hangs(client, " ".join(one.text for one in utterances(SHORT)[:24]))
    hear = Recogniser()
    heard = [hear(one) for one in audio]
    wrong = sum(word_errors(one.spoken, text) for one, text in zip(wanted, heard, strict=True))
    said = sum(len(words(one.spoken)) for one in wanted)
    assert wrong <= MOST_WRONG * said, [(one.spoken, text) for one, text in zip(wanted, heard, strict=True)]


def assert_much_to_say_is_nothing_that_hangs(client: httpx.Client, text: str) -> None:
    job = client.post("/v1/jobs", json={"text": text, "language": "en", "seed": 1}).raise_for_status().json()
    ended = client.get(f"/v1/jobs/{job['id']}", headers={"Prefer": "wait=60"}).raise_for_status().json()
    assert (ended["status"], ended["attempts"]) == ("succeeded", 1), ended
    assert ended["result"]["timings"]["generated_ms"] > 1000 * DEADLINE_SECONDS
