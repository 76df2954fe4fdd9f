"""What is asked for over HTTP is what an independent recogniser hears in the object that S3 holds."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import soundfile
from api_processes import run_api
from workers import run_worker

from bench.accuracy.texts import SHORT, utterances
from bench.accuracy.words import Recogniser, word_errors, words
from infra.local.demo import SENTENCE
from infra.local.environment import DEMO_CHECKPOINT
from training.check import PITCH_TOLERANCE, median_pitch
from training.recipe import VOICES

SENTENCES = slice(40, 50)
MOST_WRONG = 0.15
"""Of 76 words: with these seeds 6 are wrong in float32, on a CPU as on an H200; with five other sets 3 to 7."""
PITCHES = dict(zip(map(", ".join, VOICES.values()), (171.0, 103.0, 129.0), strict=True))
"""Median of the three voices' own recordings, in Hz, by their `instruct`."""
JOB_SECONDS = 240.0
DEADLINE_SECONDS = 5
"""Of a step, and of the decoding of a chunk."""
LONG_SENTENCES = 8
LONG_PARAMETERS = {"num_step": 96, "audio_chunk_duration": 5, "audio_chunk_threshold": 6}
"""So many steps for so many sentences take longer than the deadline on quick cores, and a minute on slow, busy ones; a
step or a chunk takes a small part of it."""

pytestmark = [pytest.mark.redis, pytest.mark.s3]


@pytest.mark.timeout(600)
def test_ten_sentences_are_understood(environment: dict[str, str], tmp_path: Path) -> None:
    wanted = utterances(SHORT)[SENTENCES]
    engine = {"synthesizer": "engine", "model": DEMO_CHECKPOINT, "device": "cpu"}
    engine |= {"batch_deadline_seconds": DEADLINE_SECONDS}
    with (
        run_api(environment, tmp_path) as api,
        run_worker(environment, tmp_path / "worker.log", **engine),
        httpx.Client(base_url=api.url, timeout=70, follow_redirects=True, trust_env=False) as client,
    ):
        jobs = []
        for one in wanted:
            body = {"text": one.text, "language": "en", "instruct": one.instruct, "seed": one.seed}
            jobs.append(client.post("/v1/jobs", json=body).raise_for_status().json())
        audio = [audio_of(client, job) for job in jobs]
        assert_each_voice_has_its_pitch([one.instruct for one in wanted], audio)
        for one, clip in zip(wanted[:3], audio, strict=False):
            assert_a_clone_has_the_pitch_of_its_clip(client, one.spoken, clip)
        assert_much_to_say_is_nothing_that_hangs(
            client, " ".join(one.text for one in utterances(SHORT)[:LONG_SENTENCES])
        )
    hear = Recogniser()
    heard = [hear(one) for one in audio]
    wrong = sum(word_errors(one.spoken, text) for one, text in zip(wanted, heard, strict=True))
    said = sum(len(words(one.spoken)) for one in wanted)
    assert wrong <= MOST_WRONG * said, [(one.spoken, text) for one, text in zip(wanted, heard, strict=True)]


def end_of(client: httpx.Client, job: dict[str, str]) -> dict[str, Any]:
    deadline = time.monotonic() + JOB_SECONDS
    while True:
        polled = client.get(f"/v1/jobs/{job['id']}", headers={"Prefer": "wait=60"})
        found: dict[str, Any] = polled.raise_for_status().json()
        if found["status"] not in ("queued", "running") or time.monotonic() > deadline:
            return found


def audio_of(client: httpx.Client, job: dict[str, str]) -> bytes:
    ended = end_of(client, job)
    assert ended["status"] == "succeeded", ended
    return client.get(f"/v1/jobs/{job['id']}/audio").raise_for_status().content


def pitch_of(wav: bytes) -> float:
    return median_pitch(soundfile.read(io.BytesIO(wav), dtype="float32")[0])


def assert_each_voice_has_its_pitch(instructs: list[str], audio: list[bytes]) -> None:
    """What an `instruct` asks for is nearest to that voice's pitch."""
    assert set(instructs) == set(PITCHES)
    found = [pitch_of(one) for one in audio]
    nearest = [min(PITCHES, key=lambda instruct, hertz=hertz: abs(PITCHES[instruct] - hertz)) for hertz in found]
    assert nearest == instructs, found


def assert_a_clone_has_the_pitch_of_its_clip(client: httpx.Client, transcript: str, clip: bytes) -> None:
    asked = {"text": SENTENCE, "ref_text": transcript, "language": "en", "seed": 1}
    parts = {"request": (None, json.dumps(asked)), "ref_audio": ("clip.wav", clip)}
    cloned = pitch_of(audio_of(client, client.post("/v1/jobs", files=parts).raise_for_status().json()))
    assert cloned == pytest.approx(pitch_of(clip), rel=PITCH_TOLERANCE)


def assert_much_to_say_is_nothing_that_hangs(client: httpx.Client, text: str) -> None:
    body = {"text": text, "language": "en", "seed": 1, **LONG_PARAMETERS}
    ended = end_of(client, client.post("/v1/jobs", json=body).raise_for_status().json())
    assert (ended["status"], ended["attempts"]) == ("succeeded", 1), ended
    assert ended["result"]["timings"]["generated_ms"] > 1000 * DEADLINE_SECONDS
