"""The engine: requests in, waveforms out. Schedule, run, finish."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from omnivoice.attention import pick_attention
from omnivoice.batch import Batch
from omnivoice.chunk_run import ChunkRun
from omnivoice.errors import GenerationFailed, InvalidRequest, OmniVoiceError, RequestAborted
from omnivoice.finishing import finish
from omnivoice.hub import checkpoint_folder
from omnivoice.model.backbone import Backbone
from omnivoice.model.codec import Codec
from omnivoice.model.tokenizer import PromptTokenizer
from omnivoice.parameters import SAMPLE_RATE
from omnivoice.planning import ChunkPlan, Plan, plan
from omnivoice.request import Codes, SynthesisRequest, SynthesisResult, Timings, VoicePrompt, Waveform
from omnivoice.scheduler import Mode, Scheduler
from omnivoice.text import combine_text
from omnivoice.voice import VoiceCache, encode_voice

log = logging.getLogger(__name__)

DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine runs.

    `mode` "request" runs a window of requests through all its steps before the next one starts; "step" lets requests
    join and leave between steps. `dtype` "auto" is bfloat16 on CUDA and float32 elsewhere; float64 is for the CPU.
    `max_batch_requests` bounds the chunks in a packed batch, `max_batch_tokens` its rows (a single chunk that is
    larger still runs, alone).
    """

    device: str = "auto"
    dtype: str = "auto"
    mode: Mode = "request"
    max_batch_requests: int = 32
    max_batch_tokens: int = 16_384

    def resolved_device(self) -> torch.device:
        """Raises `ValueError`, one line, for a device that this machine or this build of torch has not got."""
        has_cuda = torch.cuda.is_available()
        if self.device == "auto":
            return torch.device("cuda" if has_cuda else "cpu")
        kind, _, index = self.device.partition(":")
        if kind not in ("cpu", "cuda") or not (index or "0").isdecimal():
            raise ValueError(f"device: must be auto, cpu, cuda or cuda:N, not {self.device!r}")
        if kind == "cuda" and not (has_cuda and int(index or 0) < torch.cuda.device_count()):
            raise ValueError(f"device: {self.device} is not there; this torch sees {torch.cuda.device_count()} GPUs")
        return torch.device(self.device)

    def resolved_dtype(self) -> torch.dtype:
        if self.dtype == "auto":
            return torch.bfloat16 if self.resolved_device().type == "cuda" else torch.float32
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: must be auto or one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.dtype == "float64" and self.resolved_device().type != "cpu":
            raise ValueError("dtype: float64 is for the CPU")
        return DTYPES[self.dtype]


@dataclass(slots=True)
class _Pending:
    """A request that was admitted and has not ended: its plan, and the codes of the chunks that have."""

    request: SynthesisRequest
    plan: Plan
    seed: int
    voice: VoicePrompt | None
    codes: list[Codes | None]
    started_at: float = field(default_factory=time.perf_counter)
    batch_size: int = 1


class Engine:
    """Packs requests into variable-length batches and unmasks them step by step.

    Not thread-safe: one thread calls it. `generate` is the whole loop; a scheduler of its own uses `add_request`,
    `step` and `abort`.
    """

    sample_rate = SAMPLE_RATE

    def __init__(
        self, backbone: Backbone, tokenizer: PromptTokenizer, codec: Codec, config: EngineConfig | None = None
    ) -> None:
        self.codec = codec
        self.config = config or EngineConfig()
        self._backbone = backbone
        self._tokenizer = tokenizer
        self._voices = VoiceCache()
        self._pending: dict[str, _Pending] = {}
        self._aborted: set[str] = set()
        self._scheduler = Scheduler(self.config.mode, self.config.max_batch_requests, self.config.max_batch_tokens)
        self._batch: Batch | None = None

    @classmethod
    def from_checkpoint(cls, path_or_hub_id: str | Path, config: EngineConfig | None = None) -> Engine:
        """Load a checkpoint folder, or download a Hub repository first (the weights' licence is named then).

        Raises `CheckpointError`, one line that names the file and tensor, for anything but the layout that the
        config describes, and `ValueError` for a device or dtype that cannot be had.
        """
        config = config or EngineConfig()
        device, dtype = config.resolved_device(), config.resolved_dtype()
        folder = checkpoint_folder(path_or_hub_id)
        backbone = Backbone.from_folder(folder, device, dtype, pick_attention(device, dtype))
        tokenizer = PromptTokenizer.from_folder(folder, backbone.config.text_vocab_size)
        codec_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        codec = Codec.from_folder(folder, device, codec_dtype)
        return cls(backbone, tokenizer, codec, config)

    @property
    def num_unfinished(self) -> int:
        """Requests that were added and have not come out of `step` yet."""
        return len(self._pending)

    def encode_voice(self, waveform: Waveform, sample_rate: int, ref_text: str, preprocess: bool = True) -> VoicePrompt:
        """Encode a reference clip, (samples,) or (channels, samples); the same clip again costs a look-up.

        Raises `InvalidRequest` for a clip or transcript that cannot serve as a voice.
        """
        key = VoiceCache.key(waveform, sample_rate, ref_text, preprocess)
        return self._voices.get(key, lambda: encode_voice(self.codec, waveform, sample_rate, ref_text, preprocess))

    def generate(self, requests: Iterable[SynthesisRequest]) -> list[SynthesisResult]:
        """Serve requests together and return a result each, in their order; a bad one never raises for the others."""
        if self._pending:
            raise RuntimeError("generate() needs an idle engine; use add_request() and step() beside other requests")
        requests = list(requests)
        results: dict[str, SynthesisResult] = {}
        for index, request in enumerate(requests):
            try:
                self.add_request(str(index), request)
            except InvalidRequest as error:
                results[str(index)] = SynthesisResult(seed=_seed_of(request), error=error)
        while self._pending:
            results.update(self.step())
        return [results[str(index)] for index in range(len(requests))]

    def add_request(self, request_id: str, request: SynthesisRequest) -> None:
        """Queue a request; it joins a batch in a later `step`. Raises `InvalidRequest` and leaves no trace then."""
        if request_id in self._pending:
            raise ValueError(f"request {request_id!r} is unfinished already")
        made = plan(request)
        pending = _Pending(request, made, _seed_of(request), request.voice, [None] * len(made.chunks))
        self._pending[request_id] = pending
        # Chunks without a voice wait for the first one, which becomes their reference.
        ready = made.chunks if request.voice is not None else made.chunks[:1]
        self._scheduler.add(self._run(request_id, index, chunk) for index, chunk in enumerate(ready))

    def abort(self, request_id: str) -> None:
        """End a request at the next step with `RequestAborted`; unknown ids are ignored (it may just have ended)."""
        if request_id in self._pending:
            self._aborted.add(request_id)

    def step(self) -> list[tuple[str, SynthesisResult]]:
        """Run one unmasking step over all running requests; return those that ended, with audio or an error."""
        ended = [self._end(request_id, error=RequestAborted("aborted")) for request_id in sorted(self._aborted)]
        self._set_running(self._scheduler.admitted())
        if self._scheduler.running:
            ended += self._step_batch()
            ended += self._retire()
        return ended

    def _run(self, request_id: str, index: int, chunk: ChunkPlan) -> ChunkRun:
        pending = self._pending[request_id]
        params, voice = pending.request.params, pending.voice
        text = combine_text(chunk.text, voice.ref_text if voice else None)
        config = self._backbone.config
        return ChunkRun(
            request_id=request_id,
            chunk=index,
            prompt_ids=self._tokenizer.prompt(
                text, pending.plan.language, pending.plan.instruct, denoise=voice is not None and params.denoise
            ),
            voice_codes=voice.codes if voice else None,
            frames=chunk.frames,
            params=params,
            seed=pending.seed,
            codes=torch.full(
                (chunk.frames, config.num_codebooks), config.audio_mask_id, device=self._backbone.heads.device
            ),
        )

    def _set_running(self, runs: Sequence[ChunkRun]) -> None:
        """Change the membership of the batch; what the old one unmasked goes back to its runs first."""
        if runs == self._scheduler.running:
            return
        if self._batch is not None:
            self._batch.store()
            self._batch = None
        self._scheduler.running = list(runs)

    def _step_batch(self) -> list[tuple[str, SynthesisResult]]:
        runs = self._scheduler.running
        try:
            if self._batch is None:
                self._batch = Batch(self._backbone, runs)
                for run in runs:
                    run.batch_size = max(run.batch_size, len(runs))
            self._batch.step()
        except torch.cuda.OutOfMemoryError:
            return self._split_batch()
        return []

    def _split_batch(self) -> list[tuple[str, SynthesisResult]]:
        """Out of memory: half of the batch waits again; a chunk that does not even fit alone fails its request."""
        runs = self._scheduler.running
        torch.cuda.empty_cache()
        if len(runs) == 1:
            error = GenerationFailed("the device ran out of memory for this request alone")
            return [self._end(runs[0].request_id, error=error)]
        self._set_running(self._scheduler.halve())
        log.warning("out of memory with %d chunks: batches now hold %d rows", len(runs), self._scheduler.max_tokens)
        return []

    def _retire(self) -> list[tuple[str, SynthesisResult]]:
        done = [run for run in self._scheduler.running if run.is_done]
        self._set_running([run for run in self._scheduler.running if not run.is_done])
        ended = []
        for run in done:
            pending = self._pending.get(run.request_id)
            if pending is None:  # another chunk of it has failed
                continue
            pending.batch_size = max(pending.batch_size, run.batch_size)
            codes = np.ascontiguousarray(run.codes.T.cpu().numpy())
            if codes.max() >= self._backbone.config.audio_mask_id:  # see `Batch.step`
                ended.append(self._end(run.request_id, error=GenerationFailed("the model's scores are not finite")))
                continue
            pending.codes[run.chunk] = codes
            if run.chunk == 0 and pending.voice is None and len(pending.codes) > 1:
                self._continue_with_first_chunk(run.request_id, pending)
            if all(codes is not None for codes in pending.codes):
                ended.append(self._finish(run.request_id, pending))
        return ended

    def _continue_with_first_chunk(self, request_id: str, pending: _Pending) -> None:
        """The first chunk of a voiceless text sets the voice of the rest."""
        codes, chunks = pending.codes[0], pending.plan.chunks
        assert codes is not None
        pending.voice = VoicePrompt(codes=codes, ref_text=chunks[0].text)
        self._scheduler.add(self._run(request_id, index, chunk) for index, chunk in enumerate(chunks) if index > 0)

    def _finish(self, request_id: str, pending: _Pending) -> tuple[str, SynthesisResult]:
        codes = [chunk for chunk in pending.codes if chunk is not None]
        generated = time.perf_counter()
        try:
            waveforms = [self.codec.decode(chunk) for chunk in codes]
            waveform = finish(waveforms, pending.request.params, pending.request.voice)
        except OmniVoiceError as error:
            return self._end(request_id, error=error)
        except torch.cuda.OutOfMemoryError:
            return self._end(request_id, error=GenerationFailed("the device ran out of memory while decoding"))
        timings = Timings(
            generated_ms=(generated - pending.started_at) * 1e3,
            decoded_ms=(time.perf_counter() - generated) * 1e3,
        )
        return self._end(request_id, waveform=waveform, codes=codes[0] if len(codes) == 1 else codes, timings=timings)

    def _end(
        self,
        request_id: str,
        waveform: Waveform | None = None,
        codes: Codes | list[Codes] | None = None,
        error: OmniVoiceError | None = None,
        timings: Timings | None = None,
    ) -> tuple[str, SynthesisResult]:
        """Forget a request and everything of it that still waits or runs."""
        pending = self._pending.pop(request_id)
        self._aborted.discard(request_id)
        self._set_running(self._scheduler.forget(request_id))
        return request_id, SynthesisResult(
            seed=pending.seed,
            waveform=waveform,
            codes=codes,
            error=error,
            warnings=pending.plan.warnings,
            timings=timings or Timings(),
            batch_size=pending.batch_size,
        )


def _seed_of(request: SynthesisRequest) -> int:
    """The caller's seed, or one drawn small enough (53 bits) for JSON readers that hold numbers as doubles."""
    return secrets.randbits(53) if request.seed is None else request.seed
