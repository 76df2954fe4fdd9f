"""Every error that the engine raises or puts into a result."""

from __future__ import annotations


class OmniVoiceError(Exception):
    """Base of all errors of this package; its text is one line, fit to be shown to whoever caused it."""


class InvalidRequest(OmniVoiceError):
    """A request cannot be served as asked.

    `field` is the name of the offending field as the caller spelt it (`text`, `num_step`, `ref_audio`, …), so that an
    HTTP layer can point at it; the message says what is allowed.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class CheckpointError(OmniVoiceError):
    """A checkpoint folder is missing a file, holds other tensors than its config says, or cannot be read."""


class GenerationFailed(OmniVoiceError):
    """The model ran but its output is unusable (silent, not finite), or the device gave out while it ran."""


class RequestAborted(OmniVoiceError):
    """The caller aborted the request before it ended."""
