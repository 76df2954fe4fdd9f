"""A step of the generator's training on a CUDA device: what is compiled learns what is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from training import generator
from training.documents import Document, pack
from training.generator import Trainer, write_config
from training.recipe import FULL

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # torch's compiler warns of its own imports and looks
]

DEVICE = torch.device("cuda")
BFLOAT16_LIMIT = 0.04
"""Of a weight's gradient: both ways round to 8 bits of mantissa, and not at the same places. On a CPU, plain ones are
up to 0.024 off float32's and compiled ones up to 0.019 off plain ones."""


def documents(count: int) -> list[Document]:
    rng = np.random.default_rng(1)
    made = []
    for _ in range(count):
        target = rng.integers(0, 1024, (int(rng.integers(20, 200)), 8)).astype(np.int16)
        prompt = rng.integers(0, 256, int(rng.integers(10, 60))).tolist()
        made.append(Document(prompt, target[:10], target[10:], rng.random((len(target) - 10, 8)) < 0.7))
    return made


def learnt(trainer: Trainer, batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Losses by codebook and the gradients of all weights."""
    for weight in trainer.weights.values():
        weight.grad = None
    losses = trainer.losses(*batch)
    losses.sum().backward()
    return losses.detach(), {name: weight.grad for name, weight in trainer.weights.items() if weight.grad is not None}


def test_compiled_layers_learn_what_plain_ones_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(write_config(tmp_path, FULL.generator), FULL.generator, DEVICE)
    phase = FULL.generator.phases[0]
    trainer._lengths = (phase.longest,)
    batch = pack(documents(40), phase).tensors(DEVICE)
    losses, gradients = learnt(trainer, batch)
    monkeypatch.setattr(generator, "compiled", lambda function: function)
    plain_losses, plain = learnt(trainer, batch)
    torch.testing.assert_close(losses, plain_losses, rtol=1e-3, atol=0.0)
    assert gradients.keys() == plain.keys() == trainer.weights.keys()
    for name, gradient in gradients.items():
        assert (gradient - plain[name]).norm() <= BFLOAT16_LIMIT * plain[name].norm(), name
