"""The engine: requests in, waveforms out. Schedule, run, hand over to the finisher."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from omnivoice.attention import pick_attention
from omnivoice.chunk_run import ChunkRun
from omnivoice.config import EngineConfig
from omnivoice.device import on_stream
from omnivoice.errors import GenerationFailed, InvalidRequest, OmniVoiceError, RequestAborted
from omnivoice.executor import pick_executor
from omnivoice.finisher import Finished, Finisher
from omnivoice.hub import checkpoint_folder
from omnivoice.model.backbone import Backbone
from omnivoice.model.codec import Codec
from omnivoice.model.tokenizer import PromptTokenizer
from omnivoice.parameters import SAMPLE_RATE, SamplingParams
from omnivoice.pending import Pending
from omnivoice.planning import ChunkPlan, plan
from omnivoice.request import Codes, SynthesisRequest, SynthesisResult, Timings, VoicePrompt, Waveform
from omnivoice.scheduler import Scheduler
from omnivoice.text import combine_text
from omnivoice.voice import VoiceCache, check_samples, encode_voice

log = logging.getLogger(__name__)

TAKE_SECONDS = 1.0
TRIAL = SynthesisRequest("One.", "en", duration=0.5, seed=0, params=SamplingParams(num_step=1))
"""What an engine says to itself before it is ready."""
"""A step that has nothing to unmask waits up to this long for the finisher."""


class Engine:
    """Packs requests into variable-length batches and unmasks them step by step; what is unmasked is finished beside.

    Not thread-safe: one thread calls it. `generate` is the whole loop; a scheduler of its own uses `add_request`,
    `step` and `abort`.
    """

    sample_rate = SAMPLE_RATE

    def __init__(
        self, backbone: Backbone, tokenizer: PromptTokenizer, codec: Codec, config: EngineConfig | None = None
    ) -> None:
        self.codec = codec
        self.config = config or EngineConfig()
        self._device = backbone.heads.device
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._model = backbone.config
        self._tokenizer = tokenizer
        self._voices = VoiceCache()
        self._pending: dict[str, Pending] = {}
        self._aborted: set[str] = set()
        self._generated: list[str] = []
        self._scheduler = Scheduler(self.config.mode, self.config.max_batch_requests, self.config.max_batch_tokens)
        with on_stream(self._stream):
            self._executor = pick_executor(backbone, self.config)
        self._finisher = Finisher(codec, self._device)
        self._is_notified = False

    @classmethod
    def from_checkpoint(cls, path_or_hub_id: str | Path, config: EngineConfig | None = None) -> Engine:
        """Load a checkpoint folder, or download a Hub repository first (the weights' licence is named then).

        On CUDA the graphs of all common batches are captured too. Raises `CheckpointError`, one line that names the
        file and tensor, for anything but the layout that the config describes, and `ValueError` for a device or dtype
        that cannot be had.
        """
        config = config or EngineConfig()
        device, dtype = config.resolved_device(), config.resolved_dtype()
        folder = checkpoint_folder(path_or_hub_id)
        backbone = Backbone.from_folder(folder, device, dtype, pick_attention(device, dtype))
        tokenizer = PromptTokenizer.from_folder(folder, backbone.config.text_vocab_size)
        codec_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        codec = Codec.from_folder(folder, device, codec_dtype, fast_decode=dtype in (torch.float16, torch.bfloat16))
        engine = cls(backbone, tokenizer, codec, config)
        engine._warm_up()
        return engine

    @property
    def num_unfinished(self) -> int:
        """Requests that were added and have not come out of `step` yet."""
        return len(self._pending)

    def encode_voice(self, waveform: Waveform, sample_rate: int, ref_text: str, preprocess: bool = True) -> VoicePrompt:
        """Encode a reference clip, (samples,) or (channels, samples); the same clip again costs a look-up.

        Raises `InvalidRequest` for a clip or transcript that cannot serve as a voice.
        """
        check_samples(waveform)
        key = VoiceCache.key(waveform, sample_rate, ref_text, preprocess)
        return self._voices.get(key, lambda: encode_voice(self.codec, waveform, sample_rate, ref_text, preprocess))

    def generate(self, requests: Iterable[SynthesisRequest]) -> list[SynthesisResult]:
        """Serve requests together and return a result each, in their order; a bad one never raises for the others."""
        return self._served(list(requests), decodes=True)

    def generate_codes(self, requests: Iterable[SynthesisRequest]) -> list[SynthesisResult]:
        """Like `generate`, without the codec: results hold codes, int64 (8, frames), and no waveform."""
        return self._served(list(requests), decodes=False)

    def _served(self, requests: Sequence[SynthesisRequest], decodes: bool) -> list[SynthesisResult]:
        if self._pending:
            raise RuntimeError("generate() needs an idle engine; use add_request() and step() beside other requests")
        results: dict[str, SynthesisResult] = {}
        try:
            for index, request in enumerate(requests):
                try:
                    self._add(str(index), request, decodes)
                except InvalidRequest as error:
                    results[str(index)] = SynthesisResult(seed=_seed_of(request), error=error)
            while self._pending:
                results.update(self.step())
        finally:
            for request_id in list(self._pending):  # it was interrupted: the next call finds an idle engine
                self._end(request_id)
            self._generated.clear()
        return [results[str(index)] for index in range(len(requests))]

    def add_request(self, request_id: str, request: SynthesisRequest) -> None:
        """Queue a request; it joins a batch in a later `step`. Raises `InvalidRequest` and leaves no trace then."""
        self._add(request_id, request, decodes=True)

    def _add(self, request_id: str, request: SynthesisRequest, decodes: bool) -> None:
        if request_id in self._pending:
            raise ValueError(f"request {request_id!r} is unfinished already")
        made = plan(request)
        codes: list[torch.Tensor | None] = [None] * len(made.chunks)
        pending = Pending(request_id, request, made, _seed_of(request), request.voice, codes, decodes)
        # Chunks without a voice wait for the first one, which becomes their reference.
        ready = made.chunks if request.voice is not None else made.chunks[:1]
        runs = [self._run(pending, index, chunk) for index, chunk in enumerate(ready)]
        self._pending[request_id] = pending
        self._scheduler.add(runs)

    def abort(self, request_id: str) -> None:
        """End a request at the next step with `RequestAborted`; unknown ids are ignored (it may just have ended)."""
        if request_id in self._pending:
            self._aborted.add(request_id)

    def take_generated(self) -> list[str]:
        """Return the requests that left the batch since the last call: unmasked, and being finished beside the rest."""
        generated, self._generated = self._generated, []
        return generated

    def notify_finished(
        self, callback: Callable[[], None] | None, on_progress: Callable[[], None] | None = None
    ) -> None:
        """Have `callback` called, from another thread, whenever a result waits to come out of `step`.

        Who is told does not want to wait: `step` never waits then. `on_progress` tells, in the same way, that a part
        of what is being finished is done: a long text has many.
        """
        self._is_notified = callback is not None
        self._finisher.notify(callback, on_progress)

    def step(self) -> list[tuple[str, SynthesisResult]]:
        """Run one unmasking step over all running requests; return those that have ended, with audio or an error.

        Where nothing is left to unmask it waits for the next result instead. On CUDA the step is enqueued, not waited
        for: the host runs a few steps ahead of the device.
        """
        ended = [self._end(request_id, error=RequestAborted("aborted")) for request_id in sorted(self._aborted)]
        with on_stream(self._stream):
            self._continue_texts()
            self._set_running(self._scheduler.admitted())
            if self._scheduler.running:
                ended += self._step_batch()
                self._retire()
        waits = not (ended or self._scheduler.has_work or self._has_first_chunks() or self._is_notified)
        for finished in self._finisher.take(TAKE_SECONDS if waits and self._pending else 0.0):
            ended += self._ended(finished)
        return ended

    def _warm_up(self) -> None:
        """Have kernels compiled and graphs captured before the first request, which is then as fast as the rest."""
        start = time.perf_counter()
        with on_stream(self._stream):
            self._executor.warm_up()
        if self._stream is not None:
            self._finisher.warm_up()
        [result] = self.generate([TRIAL])
        if result.error is not None:
            log.warning("a trial request failed: %s", result.error)
        log.info("warm after %.1f s", time.perf_counter() - start)

    def _run(self, pending: Pending, index: int, chunk: ChunkPlan) -> ChunkRun:
        voice, params = pending.voice, pending.request.params
        text = combine_text(chunk.text, voice.ref_text if voice else None)
        return ChunkRun(
            request_id=pending.request_id,
            chunk=index,
            prompt_ids=self._tokenizer.prompt(
                text, pending.plan.language, pending.plan.instruct, denoise=voice is not None and params.denoise
            ),
            voice_codes=voice.codes if voice else None,
            frames=chunk.frames,
            params=params,
            seed=pending.seed,
        )

    def _set_running(self, runs: Sequence[ChunkRun]) -> None:
        if runs == self._scheduler.running:
            return
        self._executor.set_runs(runs)
        self._scheduler.running = list(runs)
        self._finisher.is_alone = not runs
        for run in runs:
            run.batch_size = max(run.batch_size, len(runs))

    def _step_batch(self) -> list[tuple[str, SynthesisResult]]:
        runs = self._scheduler.running
        try:
            self._executor.step()
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            if len(runs) == 1:
                error = GenerationFailed("the device ran out of memory for this request alone")
                return [self._end(runs[0].request_id, error=error)]
            self._set_running(self._scheduler.halve())
            log.warning("out of memory with %d chunks: batches now hold %d rows", len(runs), self._scheduler.max_tokens)
        return []

    def _retire(self) -> None:
        """Take the chunks out that had their last step; hand over the requests that are complete."""
        done = [run for run in self._scheduler.running if run.is_done]
        if not done:
            return
        generated = []
        for run in done:
            pending = self._pending[run.request_id]
            pending.note_chunk(run.chunk, self._executor.codes(run))
            pending.batch_size = max(pending.batch_size, run.batch_size)
            if pending.is_generated:
                generated.append(pending)
        self._set_running([run for run in self._scheduler.running if not run.is_done])
        self._generated += [pending.request_id for pending in generated]
        self._finisher.submit([pending.unmasked() for pending in generated])

    def _has_first_chunks(self) -> bool:
        return any(pending.first is not None for pending in self._pending.values())

    def _continue_texts(self) -> None:
        """The first chunk of a voiceless text, once it is on the host, sets the voice of the rest."""
        for pending in list(self._pending.values()):
            if pending.first is None:
                continue
            if not self._scheduler.running:
                pending.first.mark.wait()
            if not pending.first.mark.is_reached:
                continue
            chunks = pending.plan.chunks
            pending.voice = pending.first.voice(chunks[0].text)
            pending.first = None
            self._scheduler.add(self._run(pending, index, chunk) for index, chunk in enumerate(chunks) if index > 0)

    def _ended(self, finished: Finished) -> list[tuple[str, SynthesisResult]]:
        pending: Pending = finished.owner
        if self._pending.get(pending.request_id) is not pending:  # it was aborted meanwhile
            return []
        if finished.failure is not None:
            raise finished.failure
        timings = Timings(generated_ms=pending.generated_ms, decoded_ms=finished.decoded_ms)
        codes = finished.codes if len(finished.codes) > 1 else next(iter(finished.codes), None)
        return [self._end(pending.request_id, finished.waveform, codes, finished.error, timings)]

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


def _seed_of(request: object) -> int:
    """The caller's seed, or one drawn small enough (53 bits) for JSON readers that hold numbers as doubles."""
    seed = request.seed if isinstance(request, SynthesisRequest) else None
    return secrets.randbits(53) if seed is None else seed
