"""Unmasking as pure functions: guidance, token choice, scores, and the pick of the best cells.

R is the number of target rows (frames) of all requests together, C the codebooks, V the audio vocabulary. Whatever a
request chooses for itself arrives as a tensor with an entry a row, so that requests that differ share a batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch

from omnivoice.philox import CLASS_STREAM, POSITION_STREAM, gumbel, philox, uniform

CLASS_CANDIDATE_SHARE = 0.1
"""With a class temperature, tokens are drawn among this share of the vocabulary, the likeliest."""


@dataclass(frozen=True, slots=True)
class RowParams:
    """What each target row needs to know of its request; every tensor is (R,).

    `segment` numbers the request in the batch, `key_low` and `key_high` are the seed's halves, `chunk` and `frame` say
    which row of the request this is.
    """

    segment: torch.Tensor
    frame: torch.Tensor
    chunk: torch.Tensor
    key_low: torch.Tensor
    key_high: torch.Tensor
    guidance_scale: torch.Tensor
    layer_penalty_factor: torch.Tensor
    position_temperature: torch.Tensor
    class_temperature: torch.Tensor

    def at(self, rows: slice) -> RowParams:
        """Return the parameters of a stretch of rows."""
        return RowParams(*(getattr(self, field.name)[rows] for field in fields(self)))


def guide(cond: torch.Tensor, uncond: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return (1 + g) · cond − g · uncond: guided logits from logits, or what becomes them under a linear head.

    `cond` and `uncond` are (R, …), `scale` is g (R,). The branches' own softmaxes would cancel in what follows.
    """
    weight = scale.view(-1, *[1] * (cond.dim() - 1))
    return cond * (1 + weight) - uncond * weight


def token_log_probs(logits: torch.Tensor, mask_id: int) -> torch.Tensor:
    """Return log_softmax of guided logits (R, C, V), with the mask id excluded."""
    log_probs = torch.log_softmax(logits, dim=-1)
    log_probs[..., mask_id] = -torch.inf
    return log_probs


def num_class_candidates(vocab: int) -> int:
    """How many of `vocab` tokens are drawn among, with a class temperature."""
    return math.ceil(vocab * CLASS_CANDIDATE_SHARE)


def draw_tokens(
    log_probs: torch.Tensor, best: torch.Tensor, rows: RowParams, step: torch.Tensor, first_codebook: int = 0
) -> torch.Tensor:
    """Return tokens (R, C): drawn with Gumbel noise where the class temperature is positive, else `best`.

    `best` is the likeliest token (R, C), `step` (R,) the step of each row's request; the C codebooks are those from
    `first_codebook`.
    """
    values, tokens = log_probs.topk(num_class_candidates(log_probs.shape[-1]), dim=-1)
    temperature = rows.class_temperature[:, None, None]
    words = _words(rows, CLASS_STREAM, step, tokens >> 2, first_codebook)
    word = torch.stack(words, dim=-1).gather(-1, (tokens & 3)[..., None])[..., 0]
    noisy = values / temperature.clamp_min(torch.finfo(values.dtype).tiny) + gumbel(uniform(word, values.dtype))
    drawn = tokens.gather(-1, noisy.argmax(dim=-1, keepdim=True))[..., 0]
    return torch.where(rows.class_temperature[:, None] > 0, drawn, best)


def position_scores(confidence: torch.Tensor, rows: RowParams, step: torch.Tensor) -> torch.Tensor:
    """Return how much each cell (R, C) wants to be unmasked now.

    `confidence` is the largest log-probability of each cell. Later codebooks are held back by the layer penalty; with
    a position temperature the order is drawn with Gumbel noise.
    """
    codebook = torch.arange(confidence.shape[1], device=confidence.device)
    scores = confidence - rows.layer_penalty_factor[:, None] * codebook
    temperature = rows.position_temperature[:, None]
    block = torch.zeros_like(codebook).expand(scores.shape)[..., None]
    word = _words(rows, POSITION_STREAM, step, block)[0][..., 0]
    noisy = scores / temperature.clamp_min(torch.finfo(scores.dtype).tiny) + gumbel(uniform(word, scores.dtype))
    return torch.where(temperature > 0, noisy, scores)


def pick_cells(scores: torch.Tensor, segment: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return a mask (R, C) of the cells to unmask: the `counts[s]` best of every segment s.

    `scores` is (R, C) with −inf where a cell is taken, `segment` (R,) ascending, `counts` (segments,). Equal scores go
    to the earlier cell. One sort for all segments, nothing read back to the host.
    """
    cells = scores.flatten()
    owner = segment.repeat_interleave(scores.shape[1])
    by_score = cells.argsort(descending=True, stable=True)
    order = by_score[owner[by_score].argsort(stable=True)]
    first = torch.searchsorted(owner, torch.arange(len(counts), device=owner.device))
    rank = torch.arange(len(cells), device=cells.device) - first[owner]
    chosen = torch.zeros_like(cells, dtype=torch.bool)
    chosen[order] = rank < counts[owner]
    return chosen.view_as(scores)


def _words(
    rows: RowParams, stream: int, step: torch.Tensor, block: torch.Tensor, first_codebook: int = 0
) -> tuple[torch.Tensor, ...]:
    """Philox words for cells (R, C, N); the counter's layout is the table in `omnivoice.philox`."""
    codebook = torch.arange(first_codebook, first_codebook + block.shape[1], device=block.device)[:, None]
    return philox(
        (
            rows.frame[:, None, None],
            codebook << 16 | block,
            step[:, None, None],
            (rows.chunk << 1 | stream)[:, None, None],
        ),
        (rows.key_low[:, None, None], rows.key_high[:, None, None]),
    )
