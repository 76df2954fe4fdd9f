"""Decoding, checking and encoding audio files, in real formats."""

from __future__ import annotations

import io
import struct
import wave

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from omnivoice.audio.files import AUDIO_FORMATS, check_reference, encode_audio, read_audio
from omnivoice.audio.resample import resample
from omnivoice.errors import GenerationFailed, InvalidRequest

RATE = 24_000
TEXT = "This is what is said in the clip, word for word."


def speech(seconds: float, rate: int = RATE, level: float = 0.1) -> NDArray[np.float32]:
    """A 200 Hz tone that swells and ebbs four times a second, of RMS about `level`."""
    time = np.arange(int(seconds * rate)) / rate
    return (level * 2 * np.sin(2 * np.pi * 200 * time) * np.abs(np.sin(4 * np.pi * time))).astype(np.float32)


def file(data: NDArray[np.generic], rate: int = RATE, container: str = "WAV", subtype: str | None = None) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, data, rate, format=container, subtype=subtype)
    return buffer.getvalue()


@pytest.mark.parametrize("name", AUDIO_FORMATS)
def test_every_format_round_trips_at_every_rate(name: str) -> None:
    waveform = speech(1.5)
    for rate in AUDIO_FORMATS[name].sample_rates:
        decoded, decoded_rate = read_audio(encode_audio(waveform, RATE, name, rate))
        assert decoded_rate == rate
        assert decoded.shape[0] == 1
        assert decoded.shape[1] / rate == pytest.approx(1.5, abs=0.1)
        assert np.sqrt(np.mean(decoded**2)) == pytest.approx(np.sqrt(np.mean(waveform**2)), rel=0.05)


@pytest.mark.parametrize("name", AUDIO_FORMATS)
def test_a_file_is_what_its_media_type_says(name: str) -> None:
    data = encode_audio(speech(1.0), RATE, name)
    magic = {"audio/wav": b"RIFF", "audio/flac": b"fLaC", "audio/ogg": b"OggS", "audio/mpeg": b"\xff"}
    media_type = AUDIO_FORMATS[name].content_type.partition(";")[0]
    assert data.startswith(magic[media_type]) or (name == "mp3" and data.startswith(b"ID3"))


@pytest.mark.parametrize("num_samples", [1, 2, 24_001])
def test_wav_header_is_exact(num_samples: int) -> None:
    waveform = speech(2.0)[1_000 : 1_000 + num_samples]
    data = encode_audio(waveform, RATE, "wav")
    assert len(data) == 44 + 2 * num_samples
    assert struct.unpack("<I", data[4:8])[0] == len(data) - 8
    assert struct.unpack("<I", data[40:44])[0] == 2 * num_samples
    with wave.open(io.BytesIO(data)) as opened:
        assert (opened.getnchannels(), opened.getsampwidth(), opened.getframerate()) == (1, 2, RATE)
        samples = np.frombuffer(opened.readframes(opened.getnframes()), "<i2")
    assert np.array_equal(samples, np.rint(waveform * 32_767))


@pytest.mark.parametrize("num_channels", [1, 2, 6])
@pytest.mark.parametrize("rate", AUDIO_FORMATS["wav"].sample_rates)
def test_a_wav_is_what_libsndfile_writes(rate: int, num_channels: int) -> None:
    waveform = np.stack([speech(0.5, rate, 0.1 + 0.05 * channel) for channel in range(num_channels)])
    samples = np.rint(waveform * 32_767).astype(np.int16)
    assert encode_audio(waveform, rate, "wav") == file(samples.T, rate, subtype="PCM_16")


@pytest.mark.parametrize("name", AUDIO_FORMATS)
def test_a_long_waveform_is_encoded_whole(name: str) -> None:
    decoded, rate = read_audio(encode_audio(speech(60.0), RATE, name))
    assert decoded.shape[1] / rate == pytest.approx(60.0, abs=0.1)


@pytest.mark.parametrize("peak", [1.0, 1.7, 50.0])
def test_a_peak_over_one_is_scaled_and_keeps_its_shape(peak: float) -> None:
    waveform = speech(1.0, level=0.5) * np.float32(peak)
    decoded, _ = read_audio(encode_audio(waveform, RATE, "wav"))
    expected = waveform / max(1.0, float(np.abs(waveform).max()))
    assert np.abs(decoded[0] - expected).max() < 1e-4


def test_what_overshoots_in_resampling_is_scaled_too() -> None:
    square = np.sign(np.sin(np.arange(RATE) * 0.2)).astype(np.float32)
    expected = resample(square, RATE, 16_000)
    assert np.abs(expected).max() > 1.01, "this waveform does not overshoot"
    decoded, _ = read_audio(encode_audio(square, RATE, "wav", 16_000))
    assert np.abs(decoded[0] - expected / np.abs(expected).max()).max() < 1e-4


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", AUDIO_FORMATS)
def test_what_is_not_finite_is_never_written(name: str, bad: float) -> None:
    waveform = speech(1.0)
    waveform[500] = bad
    with pytest.raises(GenerationFailed, match="finite"):
        encode_audio(waveform, RATE, name, 48_000)


def test_nothing_is_no_file() -> None:
    with pytest.raises(GenerationFailed, match="empty"):
        encode_audio(np.zeros(0, np.float32), RATE, "wav")


@pytest.mark.parametrize(
    ("name", "rate", "field"), [("m4a", RATE, "format"), ("opus", 44_100, "sample_rate"), ("wav", 7, "sample_rate")]
)
def test_what_cannot_be_written_is_refused(name: str, rate: int, field: str) -> None:
    with pytest.raises(InvalidRequest, match="must be one of") as refusal:
        encode_audio(speech(1.0), RATE, name, rate)
    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("container", "subtype", "rate"),
    [
        ("WAV", "PCM_16", 8_000),
        ("WAV", "PCM_24", 44_100),
        ("WAV", "PCM_U8", 16_000),
        ("WAV", "FLOAT", 48_000),
        ("WAV", "DOUBLE", 96_000),
        ("WAV", "ULAW", 8_000),
        ("AIFF", "PCM_16", 22_050),
        ("FLAC", "PCM_24", 48_000),
        ("OGG", "VORBIS", 24_000),
        ("OGG", "OPUS", 48_000),
        ("MP3", "MPEG_LAYER_III", 44_100),
        ("CAF", "PCM_16", 24_000),
        ("W64", "PCM_16", 24_000),
        ("AU", "PCM_16", 24_000),
    ],
)
def test_references_come_in_many_formats(container: str, subtype: str, rate: int) -> None:
    clip = check_reference(file(speech(3.0, rate), rate, container, subtype), TEXT)
    assert clip.sample_rate == rate
    assert clip.seconds == pytest.approx(3.0, abs=0.1)
    assert clip.waveform.dtype == np.float32
    assert np.sqrt(np.mean(clip.waveform**2)) == pytest.approx(0.1, rel=0.1)
    assert clip.warnings == ()


@pytest.mark.parametrize("num_channels", [1, 2, 6])
def test_references_may_have_several_channels(num_channels: int) -> None:
    clip = check_reference(file(np.tile(speech(3.0)[:, None], num_channels)), TEXT)
    assert clip.waveform.shape == (num_channels, 3 * RATE)


def test_float_values_over_one_are_scaled_and_said_so() -> None:
    loud = speech(3.0) * np.float32(20)
    clip = check_reference(file(loud, subtype="FLOAT"), TEXT)
    assert np.abs(clip.waveform).max() == pytest.approx(1.0)
    assert np.abs(clip.waveform[0] - loud / np.abs(loud).max()).max() < 1e-6
    assert "scaled" in clip.warnings[0]


def test_quiet_speech_is_no_silence() -> None:
    assert check_reference(file(speech(3.0, level=0.001)), TEXT).seconds == 3.0


def with_nan() -> bytes:
    waveform = speech(3.0)
    waveform[9] = np.nan
    return file(waveform, subtype="FLOAT")


def click() -> NDArray[np.float32]:
    waveform = np.zeros(3 * RATE, np.float32)
    waveform[RATE : RATE + 50] = 0.9
    return waveform


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"garbage" * 500, "cannot be decoded"),
        (b"ID3\x03" + bytes(2_000), "cannot be decoded"),
        (file(speech(2.0))[:30], "cannot be decoded"),
        (file(np.zeros(0, np.float32)), "no audio"),
        (file(speech(0.01)), "must last 1 to 30 s, not 0.01 s"),
        (file(speech(0.2)), "must last 1 to 30 s, not 0.20 s"),
        (file(speech(31.0)), "must last at most 30 s"),
        (encode_audio(speech(60.0), RATE, "flac"), "must last at most 30 s"),
        (file(np.zeros(3 * RATE, np.float32)), "silent"),
        (file(speech(3.0, level=1e-5), subtype="FLOAT"), "silent"),
        (file(click()), "silent"),
        (with_nan(), "finite"),
        (file(np.zeros((3 * RATE, 9), np.float32)), "at most 8 channels"),
        (file(speech(3.0, 4_000), 4_000), "samples a second"),
    ],
    ids=[
        "empty",
        "garbage",
        "fake-mp3",
        "torn",
        "no-samples",
        "10-ms",
        "200-ms",
        "31-s",
        "60-s",
        "silence",
        "faint",
        "click",
        "nan",
        "9-channels",
        "4-kHz",
    ],
)
def test_bad_clips_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refusal:
        check_reference(data, TEXT)
    assert refusal.value.field == "ref_audio"
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("ref_text", "seconds", "message"),
    [
        ("", 3.0, "required"),
        ("  \n", 3.0, "required"),
        ("...", 3.0, "spoken"),
        ("Hi.", 20.0, "too short"),
        ("word " * 40, 3.0, "too long"),
    ],
)
def test_transcripts_that_cannot_match_are_refused(ref_text: str, seconds: float, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refusal:
        check_reference(file(speech(seconds)), ref_text)
    assert refusal.value.field == "ref_text"


def test_an_mp3_of_the_longest_clip_is_allowed() -> None:
    assert check_reference(encode_audio(speech(30.0), RATE, "mp3"), "word " * 90).seconds >= 30.0


@pytest.mark.parametrize("seconds", [1.0, 30.0])
def test_the_limits_themselves_are_allowed(seconds: float) -> None:
    assert check_reference(file(speech(seconds)), "word " * int(3 * seconds)).seconds == seconds
