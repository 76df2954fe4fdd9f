"""What the checkpoint can do, measured through the engine: words wrong on held-out sentences, and whose voice it is.

Of a folder that has a codec only, what the codec makes of the teachers.
"""

from __future__ import annotations

import importlib.util
import json
import random
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bench.accuracy.words import Recogniser, rate_and_error, word_errors, words
from omnivoice import Engine, EngineConfig, SamplingParams, SynthesisRequest
from omnivoice.audio.wav import encode_wav
from omnivoice.model.codec import Codec
from omnivoice.parameters import FRAME_RATE, HOP_LENGTH, SAMPLE_RATE
from training.losses import mel_filters
from training.recipe import SEED, VOICES
from training.speech import speak, voice_of
from training.stage import Stage, replacing
from training.text import Line, read_lines

Waveform = NDArray[np.float32]
BATCH = 8
MIN_PITCH, MAX_PITCH = 60.0, 400.0
MIN_CLIPS = 50
MIN_WORDS, MAX_WORDS = 5, 12
"""Of a held-out sentence that words are counted in."""
MIN_CLIP_FRAMES = 2 * FRAME_RATE
"""A shorter clip says little of a voice."""
PITCH_TOLERANCE = 0.10
FFT_SIZE, NUM_BANDS = 1024, 40
VOICED_CORRELATION = 0.4


def generate(engine: Engine, requests: Sequence[SynthesisRequest]) -> list[Waveform]:
    """Waveforms of all requests; the first that fails raises its error."""
    waveforms: list[Waveform] = []
    for start in range(0, len(requests), BATCH):
        for result in engine.generate(list(requests[start : start + BATCH])):
            if result.error or result.waveform is None:
                raise result.error or AssertionError("neither audio nor an error")
            waveforms.append(result.waveform)
    return waveforms


def median_pitch(waveform: Waveform) -> float:
    """Median of the fundamental frequency in Hz over voiced pieces of 40 ms, by autocorrelation; NaN without any."""
    shortest, longest = int(SAMPLE_RATE / MAX_PITCH), int(SAMPLE_RATE / MIN_PITCH)
    pitches = []
    for start in range(0, len(waveform) - 2 * longest, HOP_LENGTH // 4):
        piece = waveform[start : start + 2 * longest]
        if np.sqrt(np.mean(np.square(piece))) < 0.02:
            continue
        spectrum = np.abs(np.fft.rfft(piece - piece.mean(), 4 * longest)) ** 2
        correlation = np.fft.irfft(spectrum)[: longest + 1]
        correlation /= correlation[0]  # longer lags overlap less: of equal periods the shortest wins
        lag = shortest + int(correlation[shortest:].argmax())
        if correlation[lag] > VOICED_CORRELATION:
            pitches.append(SAMPLE_RATE / lag)
    return statistics.median(pitches) if pitches else float("nan")


def mel_statistics(waveforms: Iterable[Waveform]) -> NDArray[np.float32]:
    """Mean and deviation of the log-mel bands over what is not silent, (2 · bands,); loudness does not count."""
    frames = []
    for waveform in waveforms:
        spectrum = torch.stft(
            torch.from_numpy(np.asarray(waveform, np.float32)),
            FFT_SIZE,
            FFT_SIZE // 4,
            window=torch.hann_window(FFT_SIZE),
            return_complex=True,
        ).abs()
        mel = (mel_filters(FFT_SIZE, NUM_BANDS) @ spectrum).clamp_min(1e-5).log().T
        loud = mel.mean(1)
        frames.append(mel[loud > loud.max() - 4.0])
    all_frames = torch.cat(frames)
    mean = all_frames.mean(0)
    return torch.cat([mean - mean.mean(), all_frames.std(0)]).numpy()


@dataclass(frozen=True, slots=True)
class Clips:
    """Held-out lines, and what each of the voices says of each of them: float32 (samples,)."""

    lines: list[Line]
    by_voice: list[list[Waveform]]

    @classmethod
    def of(cls, work: Path, flite: Path | None, number: int) -> Clips:
        lines = [line for line in read_lines(work / "text.jsonl") if line.is_held_out and is_sentence(line)][:number]
        by_voice = [[_said(name, flite, line, index) for index, line in enumerate(lines)] for name in VOICES]
        return cls(lines, by_voice)


def is_sentence(line: Line) -> bool:
    """Fit to count words in: long enough, no numbers, which a recogniser writes as digits, and not without sense."""
    return line.kind == "sentence" and MIN_WORDS <= len(words(line.spoken)) <= MAX_WORDS


def _said(name: str, flite: Path | None, line: Line, index: int) -> Waveform:
    waveform = speak(voice_of(name, flite), line, random.Random(f"{SEED} {name} {index}")).waveform
    return np.divide(waveform, 2**15, dtype=np.float32)


def word_error_rate(lines: Sequence[Line], waveforms: Sequence[Waveform], recogniser: Recogniser) -> str:
    errors = [
        word_errors(line.spoken, recogniser(_wav(waveform))) for line, waveform in zip(lines, waveforms, strict=True)
    ]
    rate, error = rate_and_error(errors, [len(words(line.spoken)) for line in lines])
    return f"{100 * rate:.1f} ± {100 * error:.1f}% of {len(lines)} sentences"


def speaking(
    engine: Engine | None,
    codec: Codec,
    clips: Clips,
    sentences: int,
    params: SamplingParams,
    recogniser: Recogniser | None,
) -> Iterator[dict[str, str]]:
    """Every voice by its instruct items, saying held-out lines; beside it, its teacher, alone and through the codec."""
    lines = clips.lines[:sentences]
    for (name, items), own in zip(VOICES.items(), clips.by_voice, strict=True):
        design = ", ".join(items)
        requests = [SynthesisRequest(x.written, "en", design, seed=i, params=params) for i, x in enumerate(lines)]
        spoken = {"": generate(engine, requests)} if engine else {}
        spoken[", its teacher"] = own[:sentences]
        spoken[", its teacher through the codec"] = [codec.decode(codec.encode(clip)) for clip in own[:sentences]]
        figures = {}
        for who, waveforms in spoken.items():
            pitch = statistics.median(map(median_pitch, waveforms[:20]))
            figures[f"{name}{who}: median pitch"] = f"{pitch:.0f} Hz"
            if recogniser is not None:
                figures[f"{name}{who}: words wrong"] = word_error_rate(lines, waveforms, recogniser)
        yield figures


def cloning(engine: Engine, clips: Clips, trials: int, params: SamplingParams) -> dict[str, str]:
    """Clone held-out clips, each saying another held-out line, and compare with the voices' own clips."""
    rng = random.Random(SEED)
    own = [mel_statistics(said[:50]) for said in clips.by_voice]
    pitch = [statistics.median(map(median_pitch, said[:20])) for said in clips.by_voice]
    long = [i for i, clip in enumerate(clips.by_voice[0]) if len(clip) >= MIN_CLIP_FRAMES * HOP_LENGTH]
    voices, requests = [trial % len(VOICES) for trial in range(trials)], []
    for trial, voice in enumerate(voices):
        heard, said = rng.choice(long), rng.choice(clips.lines)
        prompt = engine.encode_voice(clips.by_voice[voice][heard], SAMPLE_RATE, clips.lines[heard].written)
        requests.append(SynthesisRequest(said.written, "en", voice=prompt, seed=trial, params=params))
    spoken = generate(engine, requests)
    near = [abs(median_pitch(w) / pitch[v] - 1) <= PITCH_TOLERANCE for v, w in zip(voices, spoken, strict=True)]
    nearest = [int(np.argmin([np.abs(mel_statistics([w]) - mine).mean() for mine in own])) for w in spoken]
    right = [found == voice for found, voice in zip(nearest, voices, strict=True)]
    return {
        "clones with the voice's median pitch within 10%": f"{sum(near)} of {trials}",
        "clones nearest to their own voice in mel statistics": f"{sum(right)} of {trials}",
        "both": f"{sum(a and b for a, b in zip(near, right, strict=True))} of {trials}",
    }


def run(
    stage: Stage, flite: Path | None, checkpoint: Path, device: str, sentences: int, trials: int, num_step: int
) -> bool:
    """Print the figures and keep them in `check.json`. Words are counted where a recogniser is installed."""
    is_whole = (checkpoint / "model.safetensors").exists()
    engine = Engine.from_checkpoint(checkpoint, EngineConfig(device=device)) if is_whole else None
    clips = Clips.of(stage.work, flite, max(sentences, MIN_CLIPS))
    recogniser = Recogniser() if sentences and importlib.util.find_spec("faster_whisper") else None
    params = SamplingParams(num_step=num_step)
    figures = {"held-out sentences, steps": f"{sentences}, {num_step}"}
    if sentences:
        codec = Codec.from_folder(checkpoint, device)
        for of_one in speaking(engine, codec, clips, sentences, params, recogniser):
            stage.log(**of_one)
            figures |= of_one
    if trials and engine:
        cloned = cloning(engine, clips, trials, params)
        stage.log(**cloned)
        figures |= cloned
    if sentences and recogniser is None:
        stage.log(note="words were not counted: faster-whisper is not installed here")
    with replacing(stage.work / "check.json") as path:
        path.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return True


def _wav(waveform: Waveform) -> bytes:
    return encode_wav(waveform.clip(-1, 1)[:, None], SAMPLE_RATE)
