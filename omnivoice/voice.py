"""Reference voices: from a clip and its transcript to the codes that put a voice into a prompt."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from numbers import Integral
from threading import Lock
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from omnivoice.audio.postprocess import remove_silence
from omnivoice.audio.reading import CODEC_DELAY_SECONDS
from omnivoice.audio.reference import MAX_SECONDS
from omnivoice.audio.resample import resample
from omnivoice.errors import InvalidRequest
from omnivoice.parameters import HOP_LENGTH, REFERENCE_RMS, SAMPLE_RATE
from omnivoice.request import Codes, VoicePrompt, Waveform
from omnivoice.text import add_punctuation

SILENT_RMS = 1e-5
"""-100 dBFS, under half a step of 16-bit audio: below it there is nothing to lift."""
MID_SILENCE_MS = 200
LEAD_SILENCE_MS = 100
TRAIL_SILENCE_MS = 200


class Encoder(Protocol):
    """The half of the codec that a voice needs."""

    def encode(self, waveform: Waveform) -> Codes: ...


def encode_voice(
    codec: Encoder, waveform: NDArray[np.float32], sample_rate: int, ref_text: str, preprocess: bool = True
) -> VoicePrompt:
    """Encode a clip, float32 (samples,) or (channels, samples) at `sample_rate` Hz, whose transcript is `ref_text`.

    `preprocess` shortens pauses, trims the edges and gives the transcript its missing end punctuation. Raises
    `InvalidRequest` for `ref_text` without text and for `ref_audio` that is silent, shorter than a frame, longer than
    30 s, not finite or no array of floats.
    """
    if not isinstance(ref_text, str) or not ref_text.strip():
        raise InvalidRequest("ref_text", "the transcript of the reference audio is required")
    if not isinstance(sample_rate, Integral) or isinstance(sample_rate, bool) or sample_rate < 1:
        raise InvalidRequest("sample_rate", f"must be a whole number of hertz, not {sample_rate!r:.40}")
    mono = _mono(waveform)
    if len(mono) > (MAX_SECONDS + CODEC_DELAY_SECONDS) * sample_rate:
        raise InvalidRequest("ref_audio", f"must last at most {MAX_SECONDS:g} s, not {len(mono) / sample_rate:.1f}")
    clip = resample(mono, sample_rate, SAMPLE_RATE)
    rms = _rms(clip)
    if rms < REFERENCE_RMS:
        clip = clip * np.float32(REFERENCE_RMS / rms)
    if preprocess:
        clip = remove_silence(clip, SAMPLE_RATE, MID_SILENCE_MS, LEAD_SILENCE_MS, TRAIL_SILENCE_MS)
        ref_text = add_punctuation(ref_text)
    frames = len(clip) // HOP_LENGTH
    if frames == 0:
        raise InvalidRequest("ref_audio", f"must hold at least {1000 * HOP_LENGTH // SAMPLE_RATE} ms of speech")
    return VoicePrompt(codes=codec.encode(clip[: frames * HOP_LENGTH]), ref_text=ref_text, rms=rms)


class VoiceCache:
    """Encodes each voice once, whoever asks and however often, and keeps the `max_voices` used last.

    A key is whatever tells voices apart: `key` makes one of a clip's content. Threads that ask for a voice that is
    being encoded wait for it; one that cannot be encoded raises for each of them and is not kept.
    """

    def __init__(self, max_voices: int = 64) -> None:
        if max_voices < 1:
            raise ValueError(f"max_voices must be at least 1, not {max_voices}")
        self._max_voices = max_voices
        self._voices: OrderedDict[Hashable, Future[VoicePrompt]] = OrderedDict()
        self._lock = Lock()

    @staticmethod
    def key(waveform: NDArray[np.float32], sample_rate: int, ref_text: str, preprocess: bool) -> str:
        """Return the SHA-256, in hex digits, of everything that `encode_voice` makes of a clip."""
        samples = np.ascontiguousarray(waveform)
        header = (samples.shape, samples.dtype.str, sample_rate, preprocess, ref_text)
        digest = hashlib.sha256(repr(header).encode())
        digest.update(samples.data)
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self._voices)

    def get(self, key: Hashable, encode: Callable[[], VoicePrompt]) -> VoicePrompt:
        """Return the voice known by `key`; where there is none, call `encode` for it and pass on what that raises."""
        voice, is_new = self._claim(key)
        if is_new:
            try:
                voice.set_result(encode())
            except BaseException as error:
                self._forget(key, voice)
                voice.set_exception(error)
                raise
        return voice.result()

    def _claim(self, key: Hashable) -> tuple[Future[VoicePrompt], bool]:
        with self._lock:
            voice = self._voices.get(key)
            if voice is not None:
                self._voices.move_to_end(key)
                return voice, False
            voice = self._voices[key] = Future()
            if len(self._voices) > self._max_voices:
                self._voices.popitem(last=False)
            return voice, True

    def _forget(self, key: Hashable, voice: Future[VoicePrompt]) -> None:
        # While it was being encoded it may have been pushed out and asked for again: leave that one alone.
        with self._lock:
            if self._voices.get(key) is voice:
                del self._voices[key]


def check_samples(waveform: object) -> None:
    """Raise `InvalidRequest` for anything but an array of floats: a file's integers would be far too loud."""
    if not isinstance(waveform, np.ndarray) or not np.issubdtype(waveform.dtype, np.floating):
        found = waveform.dtype if isinstance(waveform, np.ndarray) else type(waveform).__name__
        raise InvalidRequest("ref_audio", f"must be a NumPy array of floats within ±1, not {found}")


def _mono(waveform: NDArray[np.float32]) -> Waveform:
    check_samples(waveform)
    if waveform.ndim not in (1, 2):
        raise InvalidRequest("ref_audio", f"must have shape (samples,) or (channels, samples), not {waveform.shape}")
    if waveform.size == 0:
        raise InvalidRequest("ref_audio", "holds no samples")
    if not np.isfinite(waveform).all():
        raise InvalidRequest("ref_audio", "holds samples that are not finite")
    mono = waveform if waveform.ndim == 1 else waveform.mean(axis=0)
    return mono.astype(np.float32, copy=False)


def _rms(clip: Waveform) -> float:
    """Root mean square; raise `InvalidRequest` for a clip in which there is nothing to hear."""
    rms = math.sqrt(float(np.mean(np.square(clip, dtype=np.float64))))
    if rms < SILENT_RMS:
        raise InvalidRequest("ref_audio", "is silent")
    return rms
