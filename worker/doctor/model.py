"""The checkpoint: files complete, of the sizes that its configuration says. Reads no tensor, downloads nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from omnivoice.errors import CheckpointError
from omnivoice.hub import cached_folder
from worker.doctor.findings import Finding, error, ok, one_line, until, warning
from worker.jobs.settings import Settings

WEIGHTS = ("model.safetensors", "audio_tokenizer/model.safetensors")
_AGAIN = "copy or download the checkpoint again, whole, or correct OMNIVOICE_MODEL"


def check_model(settings: Settings) -> list[Finding]:
    """What a worker with these settings would load."""
    if settings.synthesizer != "engine":
        return [ok("checkpoint", f"not needed: OMNIVOICE_SYNTHESIZER={settings.synthesizer}")]
    return until(_look(settings), _told)


def weight_bytes(settings: Settings) -> int:
    """Size of the weights' files; 0 where there are none on this machine."""
    try:
        folder = cached_folder(settings.model)
    except (CheckpointError, ImportError):
        return 0
    paths = [] if folder is None else [folder / name for name in WEIGHTS]
    return sum(path.stat().st_size for path in paths if path.is_file())


def _told(problem: Exception) -> Finding | None:
    match problem:
        case CheckpointError():
            return error("checkpoint", one_line(problem), _AGAIN)
        case ImportError():
            return error("packages", one_line(problem), "pip install 'omnivoice-queue[worker]'")
    return None


def _look(settings: Settings) -> Iterator[Finding]:
    folder = cached_folder(settings.model)
    if folder is None:
        text = f"{settings.model} is not on this machine yet"
        yield warning("checkpoint", text, "the first worker downloads it (several GB); or name a folder")
        return
    yield ok("checkpoint", str(folder))
    yield from _look_into(folder)


def _look_into(folder: Path) -> Iterator[Finding]:
    # torch and transformers take seconds: a missing folder is told at once.
    from omnivoice.model.checkpoint import check_tensors  # noqa: PLC0415
    from omnivoice.model.codec.loading import empty_network  # noqa: PLC0415
    from omnivoice.model.config import ModelConfig  # noqa: PLC0415
    from omnivoice.model.tokenizer import PromptTokenizer  # noqa: PLC0415

    config = ModelConfig.from_folder(folder)
    yield ok("configuration", f"{config.num_layers} layers, {config.hidden_size} wide")
    PromptTokenizer.from_folder(folder, config.text_vocab_size)
    yield ok("tokenizer", f"fits {config.text_vocab_size} rows")
    check_tensors(folder / WEIGHTS[0], config.tensor_shapes())
    yield ok("weights", WEIGHTS[0])
    _, expected = empty_network(folder / "audio_tokenizer")
    check_tensors(folder / WEIGHTS[1], expected)
    yield ok("audio tokenizer", WEIGHTS[1])
