"""The text spoken by free voices: Debian's flite, at lengths near those that the model will be asked for.

A voice's length is proportional to flite's `duration_stretch`: a first rendering tells what the second must be. Parts
are made side by side on all cores, and a part that exists is not made again.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from omnivoice.parameters import FRAME_RATE, HOP_LENGTH, REFERENCE_RMS, SAMPLE_RATE
from omnivoice.text import estimate_frames
from training.recipe import SEED, VOICES, Recipe
from training.stage import Stage, replacing
from training.text import Line, read_lines

NEAR_SHARE = 0.75
"""Of the lines, how many are within 4% of the length rule's estimate; the rest are 0.8–1.25 times as long."""
STRETCH = (0.65, 1.6)
"""Beyond these flite mumbles or drawls; a line that is still too short ends in silence."""
TOLERANCE = 0.02
PAD_SECONDS = 0.06
"""Silence before and after what is said."""
BALANCE = ((250.0, -10.0), (500.0, -4.0), (1_000.0, 0.0))
"""Hertz and decibels: flite's voices are all pitch. From 0.8 to 2.5 kHz they lie 20 to 30 dB below their loudest
harmonics, twice as far as a voice whose words a codec of this size keeps. They are understood as well when balanced."""
SILENT = 0.01
"""Samples under this share of full scale at the edges are taken for silence."""


class Voice(Protocol):
    """Says `text` in `stretch` times its own time: float32 (samples,) at 24 kHz, without silence at its ends.

    The noise in it is drawn from `seed`.
    """

    def __call__(self, text: str, stretch: float, seed: int = 0) -> NDArray[np.float32]: ...


class ToneVoice:
    """A tone a letter, 40 ms each, pitched by the voice's name: stands in for flite in tests and trials."""

    def __init__(self, name: str) -> None:
        self._pitch = 100.0 + 60.0 * (list(VOICES).index(name) if name in VOICES else len(name))

    def __call__(self, text: str, stretch: float, seed: int = 0) -> NDArray[np.float32]:
        time = np.arange(int(0.04 * stretch * SAMPLE_RATE)) / SAMPLE_RATE
        tones = [self._pitch * (1 + ord(letter) % 32 / 8) for letter in text]
        return np.concatenate([np.sin(2 * np.pi * tone * time) for tone in tones]).astype(np.float32)


class _Wave(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


class _Voice(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("features", ctypes.c_void_p))


class FliteVoice:
    """A CMU Arctic voice out of flite's shared libraries in `folder`; raises `OSError` where one is missing."""

    def __init__(self, name: str, folder: Path) -> None:
        self._flite = _flite(folder)
        library = _load(folder, f"flite_cmu_us_{name}")
        register = getattr(library, f"register_cmu_us_{name}")
        register.restype, register.argtypes = ctypes.POINTER(_Voice), [ctypes.c_char_p]
        self._voice = register(None)

    def __call__(self, text: str, stretch: float, seed: int = 0) -> NDArray[np.float32]:
        ctypes.CDLL(None).srand(seed)  # flite's noise is the C library's rand
        self._flite.flite_feat_set_float(self._voice.contents.features, b"duration_stretch", stretch)
        wave = self._flite.flite_text_to_wave(text.encode("ascii"), self._voice)
        content = wave.contents
        samples = np.ctypeslib.as_array(content.samples, (content.num_samples,)).astype(np.float32) / 2**15
        rate = int(content.sample_rate)
        self._flite.delete_wave(wave)
        loud = np.flatnonzero(np.abs(samples) > SILENT)
        return balanced(resampled(samples[loud[0] : loud[-1] + 1] if len(loud) else samples, rate))


def resampled(samples: NDArray[np.floating], rate: int) -> NDArray[np.float32]:
    """`samples` (n,) at `rate` → at 24 kHz, with nothing above what was there: the spectrum goes on in zeros.

    The short filter of the engine's own resampling lets a mirror image pass, 20 dB below what flite says near 7 kHz.
    """
    frames = len(samples) * FRAME_RATE // rate + 2  # the second, of silence: the spectrum's end is its beginning
    spectrum = np.fft.rfft(samples, frames * rate // FRAME_RATE)
    finer = np.fft.irfft(spectrum, frames * HOP_LENGTH) * (SAMPLE_RATE / rate)
    return finer[: len(samples) * SAMPLE_RATE // rate].astype(np.float32)


def balanced(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """`samples` (n,) at 24 kHz with the gains of `BALANCE`, and those between."""
    hertz, decibels = zip(*BALANCE, strict=True)
    frequencies = np.fft.rfftfreq(2 * len(samples), 1 / SAMPLE_RATE)
    gains = 10 ** (np.interp(np.log(frequencies.clip(1.0)), np.log(hertz), decibels) / 20)
    # Silence behind it, or its end would ring at its beginning.
    return np.fft.irfft(np.fft.rfft(samples, 2 * len(samples)) * gains)[: len(samples)].astype(np.float32)


def _load(folder: Path, name: str) -> ctypes.CDLL:
    path = folder / f"lib{name}.so.{2 if name == 'asound' else 1}"
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


@cache
def _flite(folder: Path) -> ctypes.CDLL:
    # Each needs the ones before it, by names that no search path of ours would find.
    _load(folder, "asound")
    flite = _load(folder, "flite")
    for name in ("flite_cmulex", "flite_usenglish"):
        _load(folder, name)
    flite.flite_text_to_wave.restype = ctypes.POINTER(_Wave)
    flite.flite_text_to_wave.argtypes = [ctypes.c_char_p, ctypes.POINTER(_Voice)]
    flite.flite_feat_set_float.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_float]
    flite.delete_wave.argtypes = [ctypes.POINTER(_Wave)]
    flite.flite_init()
    return flite


@cache
def voice_of(name: str, folder: Path | None) -> Voice:
    return ToneVoice(name) if folder is None else FliteVoice(name, folder)


@dataclass(frozen=True, slots=True)
class Spoken:
    """`waveform` is int16 (frames · 960,); after `voiced` frames there is only silence."""

    waveform: NDArray[np.int16]
    voiced: int


def speak(voice: Voice, line: Line, rng: random.Random) -> Spoken:
    """Say a line in about the time that the length rule gives it, at RMS 0.1, in whole frames."""
    scale = rng.uniform(0.96, 1.04) if rng.random() < NEAR_SHARE else rng.uniform(0.8, 1.25)
    frames = max(1, round(estimate_frames(line.written) * scale))
    wanted = frames / FRAME_RATE - 2 * PAD_SECONDS
    noise = rng.getrandbits(31)
    said, stretch = voice(line.spoken, 1.0, noise), 1.0
    needed = min(max(wanted * SAMPLE_RATE / len(said), STRETCH[0]), STRETCH[1])
    if abs(needed - stretch) > TOLERANCE:
        said = voice(line.spoken, needed, noise)
    said = said * np.float32(REFERENCE_RMS / max(float(np.sqrt(np.mean(np.square(said)))), 1e-4))
    lead = int(PAD_SECONDS * SAMPLE_RATE)
    frames = max(frames, -(-(len(said) + lead) // HOP_LENGTH))
    waveform = np.zeros(frames * HOP_LENGTH, dtype=np.float32)
    waveform[lead : lead + len(said)] = said
    voiced = min(frames, -(-(len(said) + 2 * lead) // HOP_LENGTH))
    return Spoken((waveform.clip(-1, 1) * (2**15 - 1)).astype(np.int16), voiced)


def voices_for(line: int, recipe: Recipe) -> list[str]:
    return random.Random(f"{SEED} {line}").sample(list(VOICES), recipe.voices_per_line)


def make_part(lines: Sequence[Line], first: int, folder: Path | None, recipe: Recipe, path: Path) -> float:
    """Speak `lines`, of which the first has the number `first`, into `path` (npz); returns the seconds of speech."""
    waveforms, table = [], []
    for index, line in enumerate(lines, start=first):
        for name in voices_for(index, recipe):
            spoken = speak(voice_of(name, folder), line, random.Random(f"{SEED} {index} {name}"))
            waveforms.append(spoken.waveform)
            table.append((index, list(VOICES).index(name), len(spoken.waveform) // HOP_LENGTH, spoken.voiced))
    samples = np.concatenate(waveforms)
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, samples=samples, table=np.array(table, dtype=np.int32))
    return len(samples) / SAMPLE_RATE


def part_paths(work: Path, recipe: Recipe) -> list[Path]:
    num_lines = len(read_lines(work / "text.jsonl"))
    return [work / "speech" / f"{part:04}.npz" for part in range(-(-num_lines // recipe.part_lines))]


def run(stage: Stage, recipe: Recipe, folder: Path | None, processes: int | None = None) -> bool:
    """Make every part that is missing; True once all are there. `folder` None takes tones instead of flite."""
    lines, size = read_lines(stage.work / "text.jsonl"), recipe.part_lines
    paths = part_paths(stage.work, recipe)
    paths[0].parent.mkdir(exist_ok=True)
    missing = [(part * size, path) for part, path in enumerate(paths) if not path.exists()]
    tasks = [(lines[first : first + size], first, folder, recipe, path) for first, path in missing]
    seconds = 0.0
    for done, made in enumerate(_made(tasks, processes or os.cpu_count() or 1), start=1):
        seconds += made
        stage.log(parts=done, of=len(missing), speech_hours=round(seconds / 3600, 3))
        if stage.is_out_of_time:
            break
    return all(path.exists() for path in paths)


def _made(tasks: Sequence[tuple[Any, ...]], processes: int) -> Iterator[float]:
    """The results of `make_part` as they come; who stops listening stops the work."""
    if processes == 1:
        yield from (make_part(*task) for task in tasks)
        return
    # Spawned: a fork of a process with torch's threads may hang.
    pool = ProcessPoolExecutor(processes, get_context("spawn"))
    try:
        yield from (future.result() for future in as_completed([pool.submit(make_part, *task) for task in tasks]))
    finally:
        pool.shutdown(cancel_futures=True)


def gather_libraries(root: Path, folder: Path) -> None:
    """Copy flite's libraries, for a machine without them, from `root`: `/`, or where packages were unpacked."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ["asound.so.2", *(f"flite{part}.so.1" for part in ("", "_cmulex", "_usenglish"))]
    names += [f"flite_cmu_us_{name}.so.1" for name in VOICES]
    for name in names:
        found = sorted(root.glob(f"usr/lib/*/lib{name}"))
        if not found:
            sys.exit(f"no usr/lib/*/lib{name} under {root}: install or unpack Debian's flite, libflite1 and libasound2")
        (folder / f"lib{name}").write_bytes(found[0].read_bytes())
