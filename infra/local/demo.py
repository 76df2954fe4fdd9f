"""One sentence through the whole system, by the same HTTP calls that any client makes."""

from __future__ import annotations

import hashlib
import io
import json
import time
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from infra.local.errors import LocalError

Say = Callable[[str], None]

SENTENCE = "The quick brown fox jumps over the lazy dog."
SEED = 7
WAIT_SECONDS = 20
DEADLINE_SECONDS = 600.0
FINAL = ("succeeded", "failed", "cancelled", "expired")
TIMINGS = ("queued", "batched", "generated", "decoded", "uploaded")

ABOUT_DEMO_MODEL = """\
The voice is checkpoints/demo: a small model of our own (17 MB, English, three voices), see its README.md.
The published model speaks some 600 languages and clones voices from a short clip:
    make demo OMNIVOICE_MODEL=k2-fsa/OmniVoice     (a download of several GB; a GPU is advised)
Its weights are CC-BY-NC, not for commercial use; its audio codec has a community licence of its own."""


def speak(address: str, api_key: str | None, target: Path, say: Say) -> None:
    """Submit the sentence, wait for its end, fetch the audio into `target`, tell all about it.

    Raises `LocalError` when any of it goes wrong, also when the bytes are not those that the job's record names.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        # No proxy from the environment: the address is on this machine.
        with httpx.Client(base_url=address, timeout=WAIT_SECONDS + 20.0, trust_env=False) as client:
            began_at = time.monotonic()
            job = _wait_for_end(client, headers, _submit(client, headers, say), say)
            seconds = time.monotonic() - began_at
            if job["status"] != "succeeded":
                raise LocalError(f"the job {job['status']}: {(job['error'] or {}).get('detail', 'no reason given')}")
            audio = _fetch_audio(client, headers, job)
    except httpx.HTTPError as error:
        raise LocalError(f"the API at {address} does not answer: {error or type(error).__name__}") from None
    _check(audio, job["result"])
    target.write_bytes(audio)
    _tell(job, seconds, target, say)


def _submit(client: httpx.Client, headers: dict[str, str], say: Say) -> str:
    """The path of the new job."""
    body = {"text": SENTENCE, "language": "en", "seed": SEED}
    say(f"POST /v1/jobs {json.dumps(body)}")
    response = _checked(client.post("/v1/jobs", json=body, headers=headers))
    say(f"  {response.status_code} {response.headers['Location']}")
    return str(response.headers["Location"])


def _wait_for_end(client: httpx.Client, headers: dict[str, str], path: str, say: Say) -> dict[str, Any]:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        say(f"GET {path} (Prefer: wait={WAIT_SECONDS})")
        response = client.get(path, headers={**headers, "Prefer": f"wait={WAIT_SECONDS}"})
        job: dict[str, Any] = _checked(response).json()
        say(f"  {response.status_code} {job['status']}")
        if job["status"] in FINAL:
            return job
    raise LocalError(f"the job has not ended after {DEADLINE_SECONDS:.0f} s")


def _fetch_audio(client: httpx.Client, headers: dict[str, str], job: dict[str, Any]) -> bytes:
    redirect = _checked(client.get(f"/v1/jobs/{job['id']}/audio", headers=headers))
    # A client without our headers: the store gets the signed URL and nothing else, least of all the API's key.
    with httpx.Client(timeout=60.0, trust_env=False) as store:
        return _checked(store.get(redirect.headers["Location"])).content


def _checked(response: httpx.Response) -> httpx.Response:
    """`response` unless it is an error, which becomes a `LocalError` with the detail that the API gave."""
    if response.status_code < 400:
        return response
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = response.reason_phrase
    hint = " (set DEMO_API_KEY to one of the keys)" if response.status_code == 401 else ""
    raise LocalError(f"{response.request.method} {response.url.path} answers {response.status_code}: {detail}{hint}")


def _check(audio: bytes, result: dict[str, Any]) -> None:
    digest = hashlib.sha256(audio).hexdigest()
    if (digest, len(audio)) != (result["sha256"], result["bytes"]):
        raise LocalError(f"the audio's {len(audio)} bytes, sha256 {digest}, are not what the job's record names")
    try:
        with wave.open(io.BytesIO(audio)) as file:
            seconds = file.getnframes() / file.getframerate()
    except (wave.Error, EOFError) as error:
        raise LocalError(f"the audio is not a WAV file: {error}") from None
    if abs(seconds - result["duration_seconds"]) > 0.01:
        raise LocalError(f"the audio lasts {seconds:.2f} s, the job's record says {result['duration_seconds']:.2f} s")


def _tell(job: dict[str, Any], seconds: float, target: Path, say: Say) -> None:
    result = job["result"]
    shown = {**job, "result": {**result, "audio_url": "(a presigned URL, left out here)"}}
    say(json.dumps(shown, indent=2, ensure_ascii=False))
    say(f"object   {result['uri']}")
    say(f"         {result['bytes']} bytes, sha256 {result['sha256']} (checked)")
    steps = ", ".join(f"{name} {result['timings'][f'{name}_ms']:.0f} ms" for name in TIMINGS)
    say(f"timings  {steps}; {seconds:.1f} s from submit to end for {result['duration_seconds']:.1f} s of audio")
    say(f"audio    {target.resolve()}")
