"""One training step, again and again on tensors of the same shapes: on a GPU as a CUDA graph.

A step of these small models is some two thousand short kernels; launched one by one, the GPU would wait for the host
half of the time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

EAGER_CALLS = 3
"""Before a step is recorded: in them the allocator, cuDNN and the optimiser settle."""


class Replay:
    """`step(*inputs)`, recorded as a CUDA graph for every combination of input shapes; off a GPU, `step` itself.

    `step` reads nothing but its inputs and what lives on the device for good, waits for nothing, and sets gradients to
    None first. It returns one tensor, which the next call overwrites.
    """

    def __init__(self, step: Callable[..., Tensor], device: torch.device) -> None:
        self._step, self._device = step, device
        self._recorded: dict[tuple[torch.Size, ...], _Recorded] = {}

    def __call__(self, *inputs: Tensor) -> Tensor:
        if self._device.type != "cuda":
            return self._step(*inputs)
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes not in self._recorded:
            self._recorded[shapes] = _Recorded(self._step, inputs, self._device)
        return self._recorded[shapes](inputs)


class _Recorded:
    def __init__(self, step: Callable[..., Tensor], inputs: tuple[Tensor, ...], device: torch.device) -> None:
        self._step, self._calls = step, 0
        self._inputs = tuple(torch.empty_like(tensor, device=device) for tensor in inputs)
        self._graph = torch.cuda.CUDAGraph()
        self._stream = torch.cuda.Stream()
        self._result: Tensor | None = None

    def __call__(self, inputs: tuple[Tensor, ...]) -> Tensor:
        for mine, given in zip(self._inputs, inputs, strict=True):
            mine.copy_(given, non_blocking=True)
        self._calls += 1
        if self._calls <= EAGER_CALLS:
            # Beside the current stream, as recording will be: what the first calls allocate belongs there.
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                result = self._step(*self._inputs)
            torch.cuda.current_stream().wait_stream(self._stream)
            return result
        if self._result is None:
            # Of this thread's calls only: another may be pinning the memory of batches meanwhile.
            with torch.cuda.graph(self._graph, stream=self._stream, capture_error_mode="thread_local"):
                self._result = self._step(*self._inputs)
        self._graph.replay()
        return self._result


def on_device(device: torch.device) -> dict[str, bool]:
    """Options of torch's optimisers with which a graph may hold their step."""
    return {"fused": True, "capturable": True} if device.type == "cuda" else {}
