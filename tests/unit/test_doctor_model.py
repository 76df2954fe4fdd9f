"""What the doctor says of checkpoints that a worker could not load, and of devices that are not there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import golden_cases as golden
import pytest
import torch

from worker.doctor.findings import Level, has_errors
from worker.doctor.gpu import check_gpu
from worker.doctor.model import check_model, weight_bytes
from worker.jobs.settings import Settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy = tmp_path / "checkpoint"
    shutil.copytree(golden.CHECKPOINT, copy)
    return copy


def cut(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def widen(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["llm_config"]["intermediate_size"] += 8
    (folder / "config.json").write_text(json.dumps(config))


def test_a_whole_checkpoint(folder: Path) -> None:
    settings = Settings(model=str(folder))
    findings = check_model(settings)
    assert not has_errors(findings)
    assert [finding.subject for finding in findings] == [
        *("checkpoint", "configuration", "tokenizer", "weights", "audio tokenizer")
    ]
    files = [folder / "model.safetensors", folder / "audio_tokenizer" / "model.safetensors"]
    assert weight_bytes(settings) == sum(path.stat().st_size for path in files)


@pytest.mark.parametrize(
    ("change", "named", "num_ok"),
    [
        (remove("config.json"), "config.json", 1),
        (cut("config.json"), "config.json", 1),
        (remove("tokenizer.json"), "tokenizer.json", 2),
        (cut("tokenizer.json"), "tokenizer.json", 2),
        (remove("model.safetensors"), "model.safetensors", 3),
        (cut("model.safetensors"), "model.safetensors", 3),
        (widen, "model.safetensors: llm.layers.0.mlp", 3),
        (remove("audio_tokenizer/config.json"), "audio_tokenizer/config.json", 4),
        (cut("audio_tokenizer/model.safetensors"), "audio_tokenizer/model.safetensors", 4),
    ],
)
def test_what_is_missing_or_cut_is_named_after_what_is_well(
    change: Callable[[Path], None], named: str, num_ok: int, folder: Path
) -> None:
    change(folder)
    *well, last = check_model(Settings(model=str(folder)))
    assert [finding.level for finding in well] == [Level.OK] * num_ok
    assert last.level is Level.ERROR
    assert named in last.text
    assert "OMNIVOICE_MODEL" in last.remedy


def test_a_model_of_the_hub_that_is_not_here_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    [finding] = check_model(Settings(model="nobody/has-this-model"))
    assert finding.level is Level.WARNING
    assert list(tmp_path.iterdir()) == [], "nothing was downloaded"


def test_tones_need_neither_checkpoint_nor_gpu() -> None:
    settings = Settings(synthesizer="tone", model="/nowhere", device="cuda:9")
    assert not has_errors([*check_model(settings), *check_gpu(settings, 0)])


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_gpu_that_is_asked_for_and_not_there() -> None:
    assert check_gpu(Settings(device="cuda"), 0)[0].level is Level.ERROR
    assert check_gpu(Settings(device="auto"), 0)[0].level is Level.WARNING
    assert check_gpu(Settings(device="cpu"), 0)[0].level is Level.OK
