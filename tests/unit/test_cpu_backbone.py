"""The CPU's backbone computes what the plain one does."""

from __future__ import annotations

import golden_cases as golden
import pytest
import torch

from omnivoice.attention import SdpaAttention
from omnivoice.config import EngineConfig
from omnivoice.executor import EagerExecutor, pick_executor
from omnivoice.model.backbone import Backbone
from omnivoice.model.cpu import CpuBackbone
from omnivoice.packing import Packing
from omnivoice.team import Team

CPU = torch.device("cpu")


def plain(dtype: torch.dtype) -> Backbone:
    """The golden backbone, with norms that are no ones: a norm in the wrong place would show."""
    backbone = Backbone.from_folder(golden.CHECKPOINT, CPU, dtype, SdpaAttention())
    generator = torch.Generator().manual_seed(1)
    for layer in backbone.layers:
        for norm in (layer.input_norm, layer.q_norm, layer.k_norm, layer.ffn_norm):
            norm.copy_(torch.rand(norm.shape, generator=generator) + 0.5)
    backbone.norm.copy_(torch.rand(backbone.norm.shape, generator=generator) + 0.5)
    return backbone


# A cut for two threads inside the first sequence, inside the second, between two, behind most; then one row for two.
LENGTHS = ([30, 11, 0, 1], [12, 30], [0, 21, 21], [42], [1])


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("size", [1, 2])
def test_the_same_logits_as_the_plain_backbone(size: int, lengths: list[int], dtype: torch.dtype, limit: float) -> None:
    """Rows of very different lengths, a row of zeros, empty sequences, and only some of the codebooks."""
    backbone = plain(dtype)
    packing = Packing.of(lengths, CPU)
    rows = packing.num_rows
    hidden = torch.randn(rows, backbone.config.hidden_size, dtype=dtype, generator=torch.Generator().manual_seed(2))
    hidden *= torch.logspace(-4, 2, rows, dtype=dtype)[:, None]
    hidden[7:8] = 0
    given = hidden.clone()
    fast = CpuBackbone(backbone, Team(size))
    with torch.inference_mode():
        found = fast.logits(fast.forward(hidden, packing), slice(2, 5))
        expected = backbone.logits(backbone.forward(hidden, packing), slice(2, 5))
    assert found.shape == (rows, 3, backbone.config.audio_vocab_size)
    assert float((found - expected).norm() / expected.norm()) < limit
    assert torch.equal(hidden, given)


@pytest.mark.parametrize(("dtype", "kind"), [(torch.float32, CpuBackbone), (torch.bfloat16, Backbone)])
def test_it_serves_where_it_can(dtype: torch.dtype, kind: type[Backbone]) -> None:
    executor = pick_executor(plain(dtype), EngineConfig(device="cpu"))
    assert isinstance(executor, EagerExecutor)
    assert type(executor.backbone) is kind
