"""From logits to unmasked cells: scores with each request's own parameters, then the best cells of each request.

`omnivoice.sampling` is the slow twin and says what the numbers mean; `omnivoice.philox` how random words are counted.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from omnivoice.kernels.products import start_behind
from omnivoice.philox import CLASS_STREAM, EPSILON, POSITION_STREAM
from omnivoice.sampling import num_class_candidates

PICK_BLOCK = 1024
PICK_WARPS = 4
SCORE_WARPS = 2
_EPSILON = tl.constexpr(EPSILON)
_POSITION_STREAM = tl.constexpr(POSITION_STREAM)
_CLASS_STREAM = tl.constexpr(CLASS_STREAM)


@triton.jit
def _sortable(value):
    """Bits of float32 numbers as uint32 that sort as they do."""
    bits = value.to(tl.int32, bitcast=True)
    flipped = tl.where(bits < 0, ~bits, bits | -2147483648)
    return flipped.to(tl.uint32, bitcast=True)


@triton.jit
def _gumbel(word):
    uniform = (word >> 8).to(tl.float32) * 5.9604644775390625e-08
    return -tl.log(-tl.log(uniform + _EPSILON) + _EPSILON)


@triton.jit
def _words(frame, codebook, block, step, chunk, STREAM: tl.constexpr, low, high):
    """The four random words of each of `block`, a tensor of int32: `omnivoice.philox` defines the counter."""
    zero = block * 0
    return tl.philox_impl(
        (zero + frame).to(tl.uint32),
        ((codebook << 16) | block).to(tl.uint32),
        (zero + step).to(tl.uint32),
        (zero + (chunk * 2 + STREAM)).to(tl.uint32),
        low,
        high,
    )


@triton.jit
def _drawn_token(log_probs, vocabulary, temperature, candidates, low, high, frame, codebook, step, chunk):
    """The largest of log-probability / temperature + noise among the `candidates` likeliest tokens."""
    keys = _sortable(log_probs)
    threshold = tl.zeros((1,), tl.uint32)
    for bit in range(32):
        candidate = threshold | (tl.full((1,), 2147483648, tl.uint32) >> bit)
        enough = tl.sum((keys >= candidate).to(tl.int32), axis=0) >= candidates
        threshold = tl.where(enough, candidate, threshold)
    above = keys > threshold
    equal = keys == threshold
    missing = candidates - tl.sum(above.to(tl.int32), axis=0)
    is_candidate = above | (equal & (tl.cumsum(equal.to(tl.int32), axis=0) <= missing))
    w0, w1, w2, w3 = _words(frame, codebook, vocabulary >> 2, step, chunk, _CLASS_STREAM, low, high)
    lane = vocabulary & 3
    word = tl.where(lane == 0, w0, tl.where(lane == 1, w1, tl.where(lane == 2, w2, w3)))
    noisy = log_probs / temperature + _gumbel(word)
    return tl.argmax(tl.where(is_candidate, noisy, -float("inf")), axis=0)


@triton.jit
def _score(
    logits,
    codes,
    target_request,
    target_frame,
    request_chunk,
    request_step,
    request_key,
    penalty,
    position_temperature,
    class_temperature,
    scores,
    tokens,
    num_targets_at,
    vocab,
    mask_id,
    candidates,
    CODEBOOKS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    start_behind(CHAINED)
    codebook = tl.program_id(0)
    target = tl.program_id(1)
    if target >= tl.load(num_targets_at):
        return
    cell = target * CODEBOOKS + codebook
    if tl.load(codes + cell) != mask_id:
        tl.store(scores + cell, -float("inf"))
        return
    request = tl.load(target_request + target)
    frame = tl.load(target_frame + target)
    chunk = tl.load(request_chunk + request)
    step = tl.load(request_step + request)
    low = tl.load(request_key + request * 2).to(tl.uint32, bitcast=True)
    high = tl.load(request_key + request * 2 + 1).to(tl.uint32, bitcast=True)
    hot = tl.load(position_temperature + request)
    warm = tl.load(class_temperature + request)
    # The published vocabulary is 1,024 codes and the mask, its last token, which is never drawn but has a probability:
    # without it the block is a power of two, and no lane idles.
    vocabulary = tl.arange(0, BLOCK)
    at = (target.to(tl.int64) * CODEBOOKS + codebook) * vocab
    values = tl.load(logits + at + vocabulary, mask=vocabulary < vocab - 1, other=-float("inf"))
    last = tl.load(logits + at + vocab - 1)
    highest = tl.maximum(tl.max(values, axis=0), last)
    total = highest + tl.log(tl.sum(tl.exp(values - highest), axis=0) + tl.exp(last - highest))
    values = tl.where(vocabulary < mask_id, values, -float("inf"))
    best = tl.argmax(values, axis=0)
    confidence = tl.max(values, axis=0) - total
    if warm > 0:
        best = _drawn_token(values - total, vocabulary, warm, candidates, low, high, frame, codebook, step, chunk)
    score = confidence - tl.load(penalty + request) * codebook
    if hot > 0:
        word, _, _, _ = _words(frame, codebook, tl.arange(0, 1), step, chunk, _POSITION_STREAM, low, high)
        score = score / hot + tl.sum(_gumbel(word), axis=0)
    # A cell whose scores are not finite is never picked: it stays masked, and its request fails when it ends.
    if not (tl.abs(confidence) < float("inf")):
        score = -float("inf")
    tl.store(tokens + cell, best)
    tl.store(scores + cell, score)


def score_cells(
    logits: torch.Tensor,
    codes: torch.Tensor,
    target_request: torch.Tensor,
    target_frame: torch.Tensor,
    request_chunk: torch.Tensor,
    request_step: torch.Tensor,
    request_key: torch.Tensor,
    penalty: torch.Tensor,
    position_temperature: torch.Tensor,
    class_temperature: torch.Tensor,
    scores: torch.Tensor,
    tokens: torch.Tensor,
    num_targets: torch.Tensor,
    mask_id: int,
    chained: bool = False,
) -> None:
    """Fill `scores` float32 and `tokens` int32, both (targets, codebooks), for the cells that are still masked.

    `logits` is float32 (targets, codebooks · vocabulary); `codes`, `target_…` and `request_…` are int32, `request_key`
    (requests, 2) holds the seed's low and high word; the rest float32 (requests,). Cells that are taken score −inf.
    """
    targets, codebooks = codes.shape
    vocab = logits.shape[1] // codebooks
    _score[(codebooks, targets)](
        logits,
        codes,
        target_request,
        target_frame,
        request_chunk,
        request_step,
        request_key,
        penalty,
        position_temperature,
        class_temperature,
        scores,
        tokens,
        num_targets,
        vocab,
        mask_id,
        num_class_candidates(vocab),
        CODEBOOKS=codebooks,
        BLOCK=triton.next_power_of_2(vocab - 1),
        num_warps=SCORE_WARPS,
        CHAINED=chained,
        launch_pdl=chained,
    )


@triton.jit
def _pick(
    scores,
    tokens,
    codes,
    first_target,
    frames,
    counts,
    counts_stride,
    request_step,
    num_requests_at,
    CODEBOOKS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    start_behind(CHAINED)
    request = tl.program_id(0)
    if request >= tl.load(num_requests_at):
        return
    step = tl.load(request_step + request)
    count = tl.load(counts + request * counts_stride + step)
    first = tl.load(first_target + request) * CODEBOOKS
    num_cells = tl.load(frames + request) * CODEBOOKS
    lane = tl.arange(0, BLOCK)

    # The count-th largest score, found from the top, two bits at a time: three counts in one sum of 20 bits each.
    threshold = tl.zeros((1,), tl.uint32)
    for pair in range(16):
        unit = tl.full((1,), 1073741824, tl.uint32) >> (2 * pair)
        found = tl.zeros((BLOCK,), tl.int64)
        for start in range(0, num_cells, BLOCK):
            cell = start + lane
            key = _sortable(tl.load(scores + first + cell, mask=cell < num_cells, other=-float("inf")))
            found += (key >= threshold + unit).to(tl.int64)
            found += (key >= threshold + 2 * unit).to(tl.int64) << 20
            found += (key >= threshold + 3 * unit).to(tl.int64) << 40
        total = tl.sum(found, axis=0)
        reached = ((total & 1048575) >= count).to(tl.uint32)
        reached += (((total >> 20) & 1048575) >= count).to(tl.uint32) + ((total >> 40) >= count).to(tl.uint32)
        threshold += unit * reached
    above = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, num_cells, BLOCK):
        cell = start + lane
        score = tl.load(scores + first + cell, mask=cell < num_cells, other=-float("inf"))
        above += (_sortable(score) > threshold).to(tl.int32)
    # Of the cells that tie on it, the earlier ones.
    missing = count - tl.sum(above, axis=0)
    seen = 0
    for start in range(0, num_cells, BLOCK):
        cell = start + lane
        score = tl.load(scores + first + cell, mask=cell < num_cells, other=-float("inf"))
        key = _sortable(score)
        ties = (key == threshold).to(tl.int32)
        chosen = (key > threshold) | ((ties > 0) & (seen + tl.cumsum(ties, axis=0) <= missing))
        chosen = chosen & (score > -float("inf"))
        token = tl.load(tokens + first + cell, mask=chosen, other=0)
        tl.store(codes + first + cell, token, mask=chosen)
        seen += tl.sum(ties, axis=0)
    tl.store(request_step + request, step + 1)


def pick_cells(
    scores: torch.Tensor,
    tokens: torch.Tensor,
    codes: torch.Tensor,
    first_target: torch.Tensor,
    frames: torch.Tensor,
    counts: torch.Tensor,
    request_step: torch.Tensor,
    num_requests: torch.Tensor,
    chained: bool = False,
) -> None:
    """Give the best cells of every request their tokens, in `codes`, and count its step.

    `counts` int32 (requests, steps + 1) says how many at each step; equal scores go to the earlier cell. A request
    whose steps are over must have a zero there. `first_target` and `frames` int32 (requests,) say which rows it owns.
    """
    _pick[(len(frames),)](
        scores,
        tokens,
        codes,
        first_target,
        frames,
        counts,
        counts.stride(0),
        request_step,
        num_requests,
        CODEBOOKS=codes.shape[1],
        BLOCK=PICK_BLOCK,
        num_warps=PICK_WARPS,
        CHAINED=chained,
        launch_pdl=chained,
    )
