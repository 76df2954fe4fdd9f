"""OmniVoice, served in packed variable-length batches. Names load on first use: the text front end needs no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omnivoice.config import EngineConfig
    from omnivoice.engine import Engine
    from omnivoice.errors import (
        CheckpointError,
        GenerationFailed,
        InvalidRequest,
        OmniVoiceError,
        RequestAborted,
    )
    from omnivoice.parameters import SamplingParams
    from omnivoice.request import SynthesisRequest, SynthesisResult, VoicePrompt

_HOMES = {
    "CheckpointError": "errors",
    "Engine": "engine",
    "EngineConfig": "config",
    "GenerationFailed": "errors",
    "InvalidRequest": "errors",
    "OmniVoiceError": "errors",
    "RequestAborted": "errors",
    "SamplingParams": "parameters",
    "SynthesisRequest": "request",
    "SynthesisResult": "request",
    "VoicePrompt": "request",
}

__all__ = [
    "CheckpointError",
    "Engine",
    "EngineConfig",
    "GenerationFailed",
    "InvalidRequest",
    "OmniVoiceError",
    "RequestAborted",
    "SamplingParams",
    "SynthesisRequest",
    "SynthesisResult",
    "VoicePrompt",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
