"""From decoded chunks to the waveform that a caller gets. NumPy only."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from omnivoice.audio.postprocess import cross_fade, fade_and_pad, peak_of, remove_silence
from omnivoice.errors import GenerationFailed
from omnivoice.parameters import REFERENCE_RMS, SAMPLE_RATE, SamplingParams
from omnivoice.request import VoicePrompt, Waveform

PEAK_WITHOUT_VOICE = 0.5
SILENT_PEAK = 1e-4
"""A result whose loudest sample is below this (−80 dBFS) holds no speech."""
PAUSE_MS = 500
EDGE_MS = 100


def finish(chunks: Sequence[Waveform], params: SamplingParams, voice: VoicePrompt | None) -> Waveform:
    """Join chunks, shorten pauses, set the level, fade and pad; float32 (samples,) at 24 kHz, within ±1.

    Raises `GenerationFailed` where the codec's output is silent or not finite, so that neither reaches a file.
    """
    waveform = chunks[0] if len(chunks) == 1 else cross_fade(chunks, SAMPLE_RATE)
    peak = peak_of(waveform)
    if not math.isfinite(peak):
        raise GenerationFailed("the generated audio is not finite")
    if peak < SILENT_PEAK:
        raise GenerationFailed("the generated audio is silent")
    if params.postprocess_output:
        waveform = remove_silence(waveform, SAMPLE_RATE, PAUSE_MS, EDGE_MS, EDGE_MS, peak)
        peak = peak_of(waveform)
    gain = _gain(peak, voice)
    peak = float(np.float32(peak) * np.float32(gain))  # rounding keeps order: no need to look at every sample again
    if peak > 1.0:
        waveform, gain = waveform * np.float32(gain) / np.float32(peak), 1.0
    return fade_and_pad(waveform, SAMPLE_RATE, params.pad_duration, params.fade_duration, gain)


def _gain(peak: float, voice: VoicePrompt | None) -> float:
    """Return the factor that gives a voice its own clip's level back; without a voice, the one that sets the peak."""
    if voice is None:
        return PEAK_WITHOUT_VOICE / peak if peak > 0 else 1.0
    if voice.rms is not None and voice.rms < REFERENCE_RMS:
        return voice.rms / REFERENCE_RMS
    return 1.0
