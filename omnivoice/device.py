"""Small things about the device that several parts need."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext

import torch

PAUSE_SECONDS = 5e-5


class Mark:
    """A point of the device's work; on a CPU, where work is done when it returns, there is nothing to it.

    It is waited for by looking, not by a synchronising call, which would spin or block inside the driver. `blocking`
    is for threads that have nothing else to do.
    """

    def __init__(self, device: torch.device, *, blocking: bool = False) -> None:
        self._event = torch.cuda.Event(blocking=blocking) if device.type == "cuda" else None
        self._blocking = blocking

    def set(self) -> None:
        """Mark what the current stream has been given until now."""
        if self._event is not None:
            self._event.record()

    @property
    def is_reached(self) -> bool:
        return self._event is None or self._event.query()

    def wait(self) -> None:
        """Return once the device has got there; at once for a mark that was never set."""
        if self._event is None:
            return
        if self._blocking:
            self._event.synchronize()
            return
        while not self._event.query():
            time.sleep(PAUSE_SECONDS)

    def precede_current_stream(self) -> None:
        """Have the current stream's further work wait for this point; the host does not."""
        if self._event is not None:
            self._event.wait()


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Enqueue a copy into pinned memory, which is complete once a `Mark` set behind it is reached; no copy on a CPU."""
    if not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def on_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Make a stream the current one; without one there is nothing to do."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)
