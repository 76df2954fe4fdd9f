"""What follows the last step of a request, beside the next ones: decode on a stream of its own, finish, hand back."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Condition
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from omnivoice.device import Mark, on_stream, to_host
from omnivoice.errors import GenerationFailed, OmniVoiceError
from omnivoice.finishing import finish
from omnivoice.model.codec import Codec
from omnivoice.model.codec.passes import PASS_SIZES
from omnivoice.parameters import CODEBOOK_SIZE, NUM_CODEBOOKS, SamplingParams
from omnivoice.request import Codes, VoicePrompt, Waveform
from omnivoice.team import Team, set_threads, threads_each

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Unmasked:
    """A request whose chunks are all unmasked: codes (frames, 8) on the device, there once `ready` has been reached.

    `owner` is the caller's, handed back with the result. Without `decodes` only the codes are wanted.
    """

    owner: Any
    chunks: list[torch.Tensor]
    params: SamplingParams
    voice: VoicePrompt | None
    decodes: bool = True
    ready: Mark | None = None
    since: float = field(default_factory=time.perf_counter)


@dataclass(slots=True, eq=False)
class Finished:
    """Codes, int64 (8, frames) a chunk, and the waveform, or the error that took its place.

    `failure` is what broke the finisher itself while it had the request: nobody's fault, to be raised by the owner.
    """

    owner: Any
    codes: list[Codes] = field(default_factory=list)
    waveform: Waveform | None = None
    error: OmniVoiceError | None = None
    failure: Exception | None = None
    decoded_ms: float = 0.0


class Finisher:
    """Decodes and finishes on one thread, whatever waits together at a time; results come in the order of submission.

    The thread belongs to an executor, which ends it when the finisher is collected. `is_alone` is the engine's to set:
    while no step runs, a second thread decodes too, on a CPU of two.
    """

    def __init__(self, codec: Codec, device: torch.device) -> None:
        self._codec = codec
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.is_alone = True
        self._team = Team.of_threads(torch.get_num_threads()) if device.type == "cpu" else Team()
        self._executor = ThreadPoolExecutor(
            1, "finisher", initializer=set_threads, initargs=(threads_each(torch.get_num_threads()),)
        )
        self._changed = Condition()
        self._waiting: deque[Unmasked] = deque()
        self._finished: deque[Finished] = deque()
        self._callback: Callable[[], None] | None = None
        self._on_progress: Callable[[], None] | None = None

    def warm_up(self) -> None:
        """Have the decoder's kernels compiled, and chosen for every size of a pass, before a request needs them."""
        for frames in PASS_SIZES:
            chunk = torch.zeros(frames, NUM_CODEBOOKS, dtype=torch.int32, device=self._device)
            self.submit([Unmasked(None, [chunk], SamplingParams(), None)])
            self._executor.submit(lambda: None).result()
        self.take()

    def notify(self, callback: Callable[[], None] | None, on_progress: Callable[[], None] | None = None) -> None:
        """Have `callback` called, from a thread of the finisher's, whenever there is something to take.

        `on_progress` is called, from such a thread too, when a part of what waits has been decoded; never both at once.
        """
        with self._changed:
            self._callback, self._on_progress = callback, on_progress

    def submit(self, requests: Iterable[Unmasked]) -> None:
        """Take requests over; their tensors must not be written to any more. Never waits."""
        mark = Mark(self._device)
        mark.set()
        with self._changed:
            for request in requests:
                request.ready = mark
                self._waiting.append(request)
        self._executor.submit(self._work)

    def take(self, timeout: float = 0.0) -> list[Finished]:
        """Return what is finished, waiting up to `timeout` seconds for it."""
        with self._changed:
            self._changed.wait_for(lambda: self._finished, timeout)
            finished = list(self._finished)
            self._finished.clear()
        return finished

    def _work(self) -> None:
        with self._changed:
            requests = list(self._waiting)
            self._waiting.clear()
        if not requests:  # the work before this one has taken them along
            return
        try:
            self._finish(requests)
        except Exception as error:
            log.exception("decoding failed with %d requests", len(requests))
            for request in requests:
                self._hand_over(Finished(request.owner, failure=error))

    def _finish(self, requests: Sequence[Unmasked]) -> None:
        try:
            codes, waveforms = self._decode(requests)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            if len(requests) > 1:
                log.warning("out of memory decoding %d requests: one at a time", len(requests))
                for request in requests:
                    self._finish([request])
                return
            error = GenerationFailed("the device ran out of memory while decoding")
            self._hand_over(Finished(requests[0].owner, error=error))
            return
        for request in requests:
            chunks = [codes.popleft() for _ in request.chunks]
            sound = [waveforms.popleft() for _ in request.chunks] if request.decodes else []
            self._hand_over(_finished(request, chunks, sound))

    @torch.inference_mode()
    def _decode(self, requests: Sequence[Unmasked]) -> tuple[deque[Codes], deque[Waveform]]:
        """Codes of all chunks, and waveforms of those that are to be decoded, in order, on the host."""
        with on_stream(self._stream):
            for request in requests:
                assert request.ready is not None
                request.ready.precede_current_stream()
            chunks = [chunk for request in requests for chunk in request.chunks]
            decoded = [chunk for request in requests if request.decodes for chunk in request.chunks]
            # A cell that stayed masked has no code. Its request fails, and must not read outside the codebook before.
            readable = [chunk.clamp_max(CODEBOOK_SIZE - 1) for chunk in decoded]
            waveforms = self._sound(readable)
            all_codes = to_host(torch.cat(chunks))
            samples = to_host(torch.cat(waveforms)) if waveforms else torch.empty(0)
            done = Mark(self._device, blocking=True)
            done.set()
        done.wait()
        rows, sound = _split(all_codes.numpy(), chunks), _split(samples.numpy(), waveforms)
        return deque(np.ascontiguousarray(row.T, dtype=np.int64) for row in rows), deque(sound)

    def _sound(self, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Decode rows. A CPU takes them one by one, so whoever of two is free may take the next: it sounds the same."""
        if self._team.size == 1:
            return self._codec.decode_tensors(rows, self._tell_progress)
        waveforms = [torch.empty(0)] * len(rows)
        waiting = iter(range(len(rows)))

        def work(part: int, meet: Callable[[], None]) -> None:
            while part == 0 or self.is_alone:
                index = next(waiting, None)
                if index is None:
                    return
                [waveforms[index]] = self._codec.decode_tensors([rows[index]], self._tell_progress)

        self._team.run(work)
        return waveforms

    def _tell_progress(self) -> None:
        with self._changed:
            if self._on_progress is not None:
                self._on_progress()

    def _hand_over(self, finished: Finished) -> None:
        with self._changed:
            self._finished.append(finished)
            self._changed.notify_all()
            if self._callback is not None:
                self._callback()


def _split(joined: NDArray[Any], parts: Sequence[torch.Tensor]) -> list[NDArray[Any]]:
    """Undo a concatenation of `parts`."""
    return np.split(joined, np.cumsum([len(part) for part in parts])[:-1]) if parts else []


def _finished(request: Unmasked, codes: list[Codes], waveforms: list[Waveform]) -> Finished:
    if any(chunk.max() >= CODEBOOK_SIZE for chunk in codes):  # see `Batch.step`
        return Finished(request.owner, error=GenerationFailed("the model's scores are not finite"))
    try:
        waveform = finish(waveforms, request.params, request.voice) if request.decodes else None
    except OmniVoiceError as error:
        return Finished(request.owner, error=error)
    return Finished(request.owner, codes, waveform, decoded_ms=(time.perf_counter() - request.since) * 1e3)
