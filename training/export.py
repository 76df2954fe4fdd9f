"""From what the stages left to a checkpoint in the real layout, with its card and the licences of its sources."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from string import Template
from typing import Any

import torch
from safetensors.torch import save_file

from omnivoice.model.config import ModelConfig
from training.generator import AUDIO_VOCAB
from training.recipe import DEFAULT_VOICE, VOICES
from training.stage import Stage

MAX_BYTES = 17_000_000
CARD = Path(__file__).parent / "card.md"
LICENCES = Path(__file__).parent / "licences"
COPIED = ("config.json", "tokenizer.json", "tokenizer_config.json")


class TooLarge(Exception):
    """The checkpoint is over the size that the package may hold."""


def run(stage: Stage, out: Path) -> bool:
    """Write the checkpoint to `out`; True, or `TooLarge` raised where it is over 17 MB.

    Where the work folder has no `generator.pt`, `out` must hold the weights already, and gets its card anew.
    """
    if (stage.work / "generator.pt").exists() or not (out / "model.safetensors").exists():
        _write_weights(stage.work, out)
    shutil.copytree(LICENCES, out / "licences", dirs_exist_ok=True)
    (out / "README.md").write_text(card(stage.work), encoding="utf-8")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    stage.log(folder=str(out), bytes=size)
    if size > MAX_BYTES:
        raise TooLarge(f"{out} has {size:,} bytes, more than {MAX_BYTES:,}")
    return True


def _write_weights(work: Path, out: Path) -> None:
    state = torch.load(work / "generator.pt", map_location="cpu")
    config = ModelConfig.from_folder(work)
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.detach().half().contiguous() for name, weight in state["weights"].items()}
    tensors["codebook_layer_offsets"] = torch.arange(config.num_codebooks) * AUDIO_VOCAB
    save_file(tensors, out / "model.safetensors")
    for name in COPIED:
        shutil.copy(work / name, out / name)
    shutil.copytree(work / "audio_tokenizer", out / "audio_tokenizer", dirs_exist_ok=True)


def card(work: Path) -> str:
    """The model card: what it is, what it was made from, and the figures that the work folder has."""
    voices = "\n".join(
        f"| `{name}` | {', '.join(items)} |{' also without an instruct' if name == DEFAULT_VOICE else ''} |"
        for name, items in VOICES.items()
    )
    logs = {name: Stage(work, name).lines() for name in ("speech", "codec", "generator")}
    rows = [f"| {name} | {_last(lines)} |" for name, lines in logs.items() if lines]
    checked = work / "check.json"
    figures = json.loads(checked.read_text("utf-8")) if checked.exists() else {}
    return Template(CARD.read_text("utf-8")).substitute(
        voices=voices,
        logs="\n".join(rows),
        figures="\n".join(f"| {name} | {value} |" for name, value in figures.items()) or "| not measured yet | |",
    )


def _last(lines: list[dict[str, Any]]) -> str:
    figures = {name: value for line in lines for name, value in line.items() if name not in ("stage", "seconds")}
    return ", ".join(f"{name} {value}" for name, value in figures.items())
