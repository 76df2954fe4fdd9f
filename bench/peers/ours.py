"""Our engine under the interface of its peers, in the benchmark's own process; and the work that all of them get."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from bench.peers.process import PeerFailed
from bench.peers.protocol import FRAME_RATE, Voice, Work
from bench.random_checkpoint import SIZES, SMALL_CHECKPOINT, write_checkpoint
from bench.texts import SENTENCES, VOICE_SECONDS, VOICE_TEXT, texts_of
from omnivoice import Engine, EngineConfig, SamplingParams, SynthesisRequest, VoicePrompt
from omnivoice.audio.postprocess import scale_to_full
from omnivoice.audio.wav import encode_wav
from omnivoice.model.config import ModelConfig
from omnivoice.model.tokenizer import PromptTokenizer
from omnivoice.parameters import SAMPLE_RATE
from omnivoice.text import combine_text

MODES: dict[str, dict[str, Any]] = {
    "bf16": {"dtype": "bfloat16"},
    "fp16": {"dtype": "float16"},
    "fp32": {"dtype": "float32"},
    "fp8": {"dtype": "bfloat16", "fp8": True},
    "deterministic": {"dtype": "bfloat16", "deterministic": True},
}
"""How the engine can be asked to run: fields of its config."""

ENCODING_THREADS = 4
"""As in the worker, files are encoded beside the engine's thread."""


def checkpoint_of_size(size: str, scratch: Path) -> Path:
    """Return a folder with random weights: the small golden checkpoint, or one written into `scratch`."""
    if size == "golden":
        return SMALL_CHECKPOINT
    folder = scratch / size
    if not folder.exists():
        write_checkpoint(folder, SIZES[size], torch.bfloat16 if size == "published" else torch.float32)
        if size == "published":
            teach_words(folder / "tokenizer.json")
    return folder


def teach_words(path: Path) -> None:
    """Train the tokenizer in `path` on the benchmark's own texts, until each of their words is one token.

    That is how the published tokenizer splits common English; the small one's letters would be twice as many rows.
    """
    tokenizer = Tokenizer.from_file(str(path))
    special = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    trainer = BpeTrainer(
        vocab_size=4_000,
        min_frequency=1,
        special_tokens=special,
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*SENTENCES, VOICE_TEXT], trainer)
    tokenizer.save(str(path))


def make_work(
    batch: int, seconds: float, has_voice: bool, num_step: int = 32, position_temperature: float = 5.0
) -> Work:
    """The batch that every contender gets: `batch` texts for `seconds` of audio each."""
    voice = None
    if has_voice:
        codes = np.random.default_rng(0).integers(0, 1024, (8, int(VOICE_SECONDS * FRAME_RATE)))
        voice = Voice(codes.tolist(), VOICE_TEXT)
    frames = int(seconds * FRAME_RATE)
    return Work(texts_of(seconds, batch), frames, num_step, voice, position_temperature)


def requests_of(work: Work) -> list[SynthesisRequest]:
    params = SamplingParams(num_step=work.num_step, position_temperature=work.position_temperature)
    voice = None if work.voice is None else VoicePrompt(np.array(work.voice.codes), work.voice.text, rms=0.1)
    return [
        SynthesisRequest(text, work.language, voice=voice, duration=work.duration, seed=seed, params=params)
        for seed, text in enumerate(work.texts)
    ]


class RowCounter:
    """Counts the packed rows of a piece of work: both branches of every request."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = PromptTokenizer.from_folder(folder, ModelConfig.from_folder(folder).text_vocab_size)

    def __call__(self, work: Work) -> int:
        voice = work.voice
        prompts = [
            self._tokenizer.prompt(combine_text(text, voice.text if voice else None), work.language, None, bool(voice))
            for text in work.texts
        ]
        voice_frames = len(voice.codes[0]) if voice else 0
        return sum(map(len, prompts)) + len(prompts) * (voice_frames + 2 * work.frames)


class OurEngine:
    """The engine in one mode, timed as its peers are: from texts to codes."""

    def __init__(
        self, mode: str, folder: Path, device: str, max_batch_requests: int, max_batch_tokens: int | None = None
    ) -> None:
        mode = "fp32" if device == "cpu" else mode
        self.name = f"engine {mode}"
        options = MODES[mode] | {"max_batch_requests": max_batch_requests}
        if max_batch_tokens is not None:
            options["max_batch_tokens"] = max_batch_tokens
        start = time.perf_counter()
        config = EngineConfig(device=device, **options)
        self.engine = Engine.from_checkpoint(folder, config)
        self._is_cuda = config.resolved_device().type == "cuda"
        self._synchronize()
        self.info = {"start_s": round(time.perf_counter() - start, 2)} | {key: str(options[key]) for key in options}
        if self._is_cuda:
            self.info["reserved_gib"] = round(torch.cuda.memory_reserved() / 2**30, 2)

    def run(self, work: Work, untimed: int = 0) -> float:
        """Seconds of one generation of `work`, after `untimed` others."""
        requests = requests_of(work)
        for _ in range(untimed):
            self._generate(requests)
        return self._generate(requests)

    def codes(self, work: Work) -> list[list[list[int]]]:
        """The codes of every text, [8][frames]."""
        found: list[list[list[int]]] = []
        for result in self.engine.generate(requests_of(work)):
            if not isinstance(result.codes, np.ndarray):
                raise PeerFailed(f"{self.name}: {result.error}")
            found.append(result.codes.tolist())
        return found

    def to_wav(self, work: Work) -> float:
        """Seconds from texts to finished WAV files in memory: generation, decoding, post-processing, encoding."""
        start = time.perf_counter()
        for index, request in enumerate(requests_of(work)):
            self.engine.add_request(str(index), request)
        files = []
        with ThreadPoolExecutor(ENCODING_THREADS) as pool:
            while self.engine.num_unfinished:
                for _, result in self.engine.step():
                    if result.waveform is None:
                        raise PeerFailed(f"{self.name}: {result.error}")
                    files.append(pool.submit(wav_of, result.waveform))
        if not all(file.result() for file in files) or len(files) != len(work.texts):
            raise PeerFailed(f"{self.name}: {len(files)} files for {len(work.texts)} texts")
        return time.perf_counter() - start

    def _synchronize(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize()

    def _generate(self, requests: list[SynthesisRequest]) -> float:
        """Seconds of generating without decoding."""
        self._synchronize()
        start = time.perf_counter()
        self.engine.generate_codes(requests)
        self._synchronize()
        return time.perf_counter() - start


def wav_of(waveform: NDArray[np.float32]) -> bytes:
    """A 16-bit WAV file, as the worker writes it."""
    return encode_wav(np.atleast_2d(scale_to_full(waveform)[0]).T, SAMPLE_RATE)
