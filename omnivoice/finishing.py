"""From decoded chunks to the waveform that a caller gets. NumPy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from omnivoice.audio.postprocess import cross_fade, fade_and_pad, remove_silence
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
    if not np.isfinite(waveform).all():
        raise GenerationFailed("the generated audio is not finite")
    if not len(waveform) or np.abs(waveform).max() < SILENT_PEAK:
        raise GenerationFailed("the generated audio is silent")
    if params.postprocess_output:
        # Silence is found in 16-bit integers: scale first, or a peak over 1 would be clipped there.
        waveform = remove_silence(_within_unit(waveform), SAMPLE_RATE, PAUSE_MS, EDGE_MS, EDGE_MS)
    waveform = _within_unit(_level(waveform, voice))
    return fade_and_pad(waveform, SAMPLE_RATE, params.pad_duration, params.fade_duration)


def _level(waveform: Waveform, voice: VoicePrompt | None) -> Waveform:
    """Give a voice its own clip's level back; without a voice, set the peak."""
    if voice is None:
        peak = float(np.abs(waveform).max(initial=0.0))
        return waveform * np.float32(PEAK_WITHOUT_VOICE / peak) if peak > 0 else waveform
    if voice.rms is not None and voice.rms < REFERENCE_RMS:
        return waveform * np.float32(voice.rms / REFERENCE_RMS)
    return waveform


def _within_unit(waveform: Waveform) -> Waveform:
    peak = float(np.abs(waveform).max(initial=0.0))
    return waveform if peak <= 1.0 else waveform / np.float32(peak)
