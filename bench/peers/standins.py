"""Small stand-ins for modules that a peer imports and that are not here, so that its generator runs unchanged.

Nothing of a peer's arithmetic is stood in for: only where it logs, rounds a number up, asks which device it is on, or
imports what its generator never calls. The one function that computes is attention for a vllm-omni without its own
FlashAttention wheel: torch's, which is FlashAttention 2.
"""

from __future__ import annotations

import inspect
import logging
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

import torch


def add_module(name: str, **members: object) -> ModuleType:
    """Put a module of that name into `sys.modules`, with `members`, and into its parent if that is there."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__dict__.update(members)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)
    return module


def add_package(name: str, folder: Path | None = None, **members: object) -> ModuleType:
    """A package whose `__init__` does not run; its modules are those in `folder`, or stand-ins only."""
    return add_module(name, __path__=[] if folder is None else [str(folder)], **members)


class _Anything(ModuleType):
    """A module that has every name; what it hands out can be imported but is of no use."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def empty_modules(*names: str) -> None:
    """Modules whose every name can be imported and none used."""
    for name in names:
        module = _Anything(name)
        module.__path__ = []
        module.__spec__ = ModuleSpec(name, None)
        sys.modules[name] = module


class _Logger(logging.Logger):
    """vllm's loggers have these as well."""

    def warning_once(self, message: str, *arguments: object) -> None:
        self.warning(message, *arguments)

    def info_once(self, message: str, *arguments: object) -> None:
        self.info(message, *arguments)


def _init_logger(name: str) -> _Logger:
    return _Logger(name, logging.WARNING)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


class _Capability(NamedTuple):
    major: int
    minor: int


class CudaPlatform:
    """vllm-omni's platform object, as far as attention asks it. On a CPU its CUDA paths run too, with torch's SDPA."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("is_"):
            return lambda: name == "is_cuda"
        raise AttributeError(name)

    def get_device_capability(self) -> _Capability | None:
        return _Capability(*torch.cuda.get_device_capability()) if torch.cuda.is_available() else None


def torch_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """torch's `varlen_attn` under the signature of FlashAttention; (T, heads, head_dim) in and out."""
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - absent before torch 2.10

    if causal:
        raise NotImplementedError("the generator's attention is not causal")
    options: dict[str, Any] = {} if softmax_scale is None else {"scale": softmax_scale}
    if softmax_scale is not None and "scale" not in inspect.signature(varlen_attn).parameters:
        if abs(softmax_scale - q.shape[-1] ** -0.5) > 1e-6:
            raise NotImplementedError("this torch has a fixed attention scale")
        options = {}
    out = varlen_attn(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **options)
    return cast(torch.Tensor, out)


def add_vllm() -> None:
    """`vllm`, as far as vllm-omni's OmniVoice pipeline and its FlashAttention backend import it."""
    try:
        import triton  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415 - not there on every machine
        from triton import language  # noqa: PLC0415
    except ImportError:
        triton = language = None
    add_package("vllm")
    add_module("vllm.logger", init_logger=_init_logger)
    add_package("vllm.utils")
    add_module("vllm.utils.math_utils", round_up=_round_up)
    add_module("vllm.triton_utils", HAS_TRITON=triton is not None, triton=triton, tl=language)
    add_module("vllm.vllm_flash_attn", flash_attn_varlen_func=torch_varlen)
