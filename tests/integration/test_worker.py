"""Jobs through a real worker process: each gets its own audio, in both modes."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
import soundfile
from workers import REPOSITORY, Desk, assert_speaks, run_worker, wav_samples

from omnivoice.parameters import HOP_LENGTH, SAMPLE_RATE
from omnivoice.planning import plan
from omnivoice.request import SynthesisRequest
from worker.jobs.models import Status
from worker.synthesizers import tone_hertz


def store_reference(desk: Desk) -> str:
    """Put a clip under `references/test` and return its transcript: loud, of two seconds, as the checks want it."""
    time = np.arange(2 * SAMPLE_RATE) / SAMPLE_RATE
    clip = io.BytesIO()
    soundfile.write(clip, 0.3 * np.sin(2 * math.pi * 220 * time), SAMPLE_RATE, format="WAV")
    desk.store.put("references/test", clip.getvalue(), "audio/wav")
    return "I would like a window seat, please."


@pytest.mark.parametrize("mode", ["request", "step"])
def test_job_ends_with_its_audio_and_its_times(
    mode: str, desk: Desk, environment: dict[str, str], tmp_path: Path
) -> None:
    text = "The tide comes in twice a day."
    with run_worker(environment, tmp_path / "worker.log", mode=mode, tone_window_ms=80) as worker:
        job_id = desk.submit(text, duration=None, seed=7)
        [record] = desk.wait_ended([job_id])
        data = desk.audio(record)
        assert text not in worker.log_file.read_text()
    samples, sample_rate = wav_samples(data)
    assert sample_rate == SAMPLE_RATE
    assert len(samples) == plan(SynthesisRequest(text)).frames * HOP_LENGTH
    assert_speaks(data, text)
    result = record.result
    assert result is not None
    assert record.attempts == 1
    assert (result.seed, result.batch_size, result.content_type) == (7, 1, "audio/wav")
    assert result.duration_seconds == len(samples) / sample_rate
    assert result.timings.generated_ms >= 80
    # A lone job waits for its window's end where windows are waited for, and only there.
    assert (result.timings.batched_ms >= 45) == (mode == "request")
    assert min(result.timings.queued_ms, result.timings.decoded_ms, result.timings.uploaded_ms) >= 0


@pytest.mark.parametrize("mode", ["request", "step"])
def test_forty_jobs_at_once_get_each_its_own_audio(
    mode: str, desk: Desk, environment: dict[str, str], tmp_path: Path
) -> None:
    texts = [f"Passenger number {index}, please come to the desk." for index in range(40)]
    assert len({tone_hertz(text) for text in texts}) == len(texts)
    with run_worker(environment, tmp_path / "worker.log", mode=mode, tone_window_ms=40, max_batch_requests=8):
        ids = [desk.submit(text, queue="bulk" if index % 3 else "interactive") for index, text in enumerate(texts)]
        records = desk.wait_ended(ids, 60)
        audio = [desk.audio(record) for record in records]
    for text, data in zip(texts, audio, strict=True):
        assert_speaks(data, text)
    sizes = [record.result.batch_size for record in records if record.result]
    assert max(sizes) <= 8
    assert sum(sizes) / len(sizes) > 2, "the jobs came at once, so they must have shared windows"
    assert all(record.attempts == 1 for record in records)


def test_reference_voice_sets_the_length_and_is_encoded_once(
    desk: Desk, environment: dict[str, str], tmp_path: Path
) -> None:
    ref_text = store_reference(desk)
    with run_worker(environment, tmp_path / "worker.log"):
        ids = [
            desk.submit(f"This is voice {n}.", duration=None, reference_key="references/test", ref_text=ref_text)
            for n in range(3)
        ]
        records = desk.wait_ended(ids)
        audio = [desk.audio(record) for record in records]
        broken = desk.submit("No voice.", reference_key="references/absent", ref_text=ref_text)
        [failed] = desk.wait_ended([broken])
    lengths = {len(wav_samples(data)[0]) for data in audio}
    alone = plan(SynthesisRequest("This is voice 1.")).frames * HOP_LENGTH
    assert len(lengths) == 1
    assert lengths != {alone}
    assert failed.status is Status.FAILED
    assert failed.error is not None
    assert failed.error.type == "storage-error"


def test_bad_job_fails_alone(desk: Desk, environment: dict[str, str], tmp_path: Path) -> None:
    """The API would refuse an unknown language, but the worker must not rely on that."""
    with run_worker(environment, tmp_path / "worker.log", tone_window_ms=30):
        good = [desk.submit(f"Good number {index}.") for index in range(7)]
        bad = desk.submit("Bad.", language="klingonese")
        records = desk.wait_ended([*good, bad])
    assert [record.status for record in records] == [Status.SUCCEEDED] * 7 + [Status.FAILED]
    error = records[-1].error
    assert error is not None
    assert (error.type, "language" in error.detail) == ("invalid-request", True)


def test_audio_comes_in_the_format_and_rate_that_were_asked_for(
    desk: Desk, environment: dict[str, str], tmp_path: Path
) -> None:
    wanted = [("flac", 24_000), ("mp3", 24_000), ("ogg", 48_000), ("wav", 16_000)]
    with run_worker(environment, tmp_path / "worker.log"):
        ids = [desk.submit("In this format.", format=name, sample_rate=rate) for name, rate in wanted]
        records = desk.wait_ended(ids)
    for (name, rate), record in zip(wanted, records, strict=True):
        info = soundfile.info(io.BytesIO(desk.audio(record)))
        assert (info.format.lower(), info.samplerate) == (name, rate)
        assert info.frames == pytest.approx(rate, rel=0.1)
        assert record.result is not None
        assert record.result.uri.endswith(f".{name}")


def test_real_engine_serves_a_batch_with_and_without_a_voice(
    desk: Desk, environment: dict[str, str], tmp_path: Path
) -> None:
    """On the golden checkpoint, whose weights are random: what it says is noise, how much of it is not."""
    ref_text = store_reference(desk)
    settings = {
        "synthesizer": "engine",
        "model": REPOSITORY / "tests/golden/checkpoint",
        "device": "cpu",
        "mode": "step",
    }
    with run_worker(environment, tmp_path / "worker.log", **settings, max_wait_ms=500):
        fields: dict[str, object] = {"num_step": 4, "postprocess_output": False, "seed": 3}
        voiced = desk.submit("With a voice.", reference_key="references/test", ref_text=ref_text, **fields)
        ids = [desk.submit("Without a voice.", **fields), voiced, desk.submit("Bad.", language="klingonese", **fields)]
        records = desk.wait_ended(ids, 60)
        audio = [wav_samples(desk.audio(record))[0] for record in records[:2]]
    assert records[2].status is Status.FAILED
    for record, samples in zip(records, audio, strict=False):
        assert record.result is not None
        assert record.result.seed == 3
        # A second was asked for; fades and padding may be added to it.
        assert SAMPLE_RATE <= len(samples) <= 1.5 * SAMPLE_RATE
        assert np.abs(samples).max() > 0
