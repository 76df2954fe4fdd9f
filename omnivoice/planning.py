"""What a request will take, worked out before anything is allocated: text, chunks, frames. No torch here.

The API plans a request when it is submitted, so that a bad one is refused at once and its length is known; the engine
plans it again when it is admitted. Both get the same plan.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import accumulate, pairwise

from omnivoice.errors import InvalidRequest
from omnivoice.parameters import (
    BOUNDS,
    FRAME_RATE,
    MAX_AUDIO_SECONDS,
    MAX_CHUNK_SECONDS,
    MAX_TEXT_CHARS,
    SamplingParams,
)
from omnivoice.request import SynthesisRequest, VoicePrompt
from omnivoice.text import (
    chunk_text,
    clean_text,
    contains_chinese,
    estimate_frames,
    is_speakable,
    normalize_text,
    resolve_instruct,
    resolve_language,
    text_weight,
)

log = logging.getLogger(__name__)

MIN_PACE_FRAMES = 2 * FRAME_RATE
"""A first chunk shorter than this says too little about the pace to time the chunks after it."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What planning needs to know of a reference voice: its transcript and its length in frames."""

    text: str
    frames: int


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """One piece of text that is generated in one go, and the frames that it gets."""

    text: str
    frames: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A request made concrete: cleaned text, resolved language and voice design, chunks with their lengths."""

    text: str
    language: str | None
    instruct: str | None
    chunks: tuple[ChunkPlan, ...]
    reference: Reference | None
    warnings: tuple[str, ...]

    @property
    def frames(self) -> int:
        """Frames of all chunks together, before silence is removed and joints are added."""
        return sum(chunk.frames for chunk in self.chunks)

    @property
    def seconds(self) -> float:
        return self.frames / FRAME_RATE

    @property
    def num_tokens(self) -> int:
        """Rows that the request's chunks fill in packed batches, about: two branches of target frames, and prompts."""
        reference = self.reference.frames if self.reference else 0
        return 2 * self.frames + len(self.chunks) * reference + len(self.text)


def plan(request: SynthesisRequest, reference: Reference | None = None) -> Plan:
    """Check a request and lay it out.

    `reference` stands for a voice that is not encoded yet; a request that carries its voice needs none. Raises
    `InvalidRequest` naming the field for anything that cannot be served.
    """
    if not isinstance(request, SynthesisRequest):
        raise InvalidRequest("request", f"must be a SynthesisRequest, not {type(request).__name__}")
    if not isinstance(request.params, SamplingParams):
        raise InvalidRequest("params", "must be SamplingParams")
    if request.voice is not None:
        if not isinstance(request.voice, VoicePrompt):
            raise InvalidRequest("voice", "must be a VoicePrompt, as encode_voice makes one")
        reference = Reference(request.voice.ref_text, request.voice.frames)
    _check_numbers(request)
    text, warnings = _cleaned("text", request.text)
    if not is_speakable(text):
        raise InvalidRequest("text", "must hold something to speak: a letter, a digit or a tag such as [laughter]")
    if reference is not None:
        reference = Reference(_cleaned("ref_text", reference.text)[0], reference.frames)
    language = resolve_language(request.language)
    if request.normalize_text:
        text, more = _normalized(text, language)
        warnings += more
    total = _total_frames(text, request, reference)
    return Plan(
        text=text,
        language=language,
        instruct=resolve_instruct(request.instruct, contains_chinese(text)),
        chunks=_chunks(text, total, request, reference),
        reference=reference,
        warnings=warnings,
    )


def _cleaned(field: str, text: str) -> tuple[str, tuple[str, ...]]:
    if not isinstance(text, str):
        raise InvalidRequest(field, "must be a string")
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidRequest(field, f"must have at most {MAX_TEXT_CHARS:,} characters, not {len(text):,}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(field, "holds half of a surrogate pair, which no encoding can spell") from None
    if "\0" in text:
        raise InvalidRequest(field, "must not hold NUL characters (U+0000)")
    return clean_text(text)


def _normalized(text: str, language: str | None) -> tuple[str, tuple[str, ...]]:
    """The text with its numbers in words, or as it is with a warning: a job does not fail for its digits."""
    if language not in (None, "en") or contains_chinese(text):
        return text, ("normalize_text knows English only; the text is read as it is",)
    try:
        return normalize_text(text), ()
    except Exception as error:
        log.exception("normalize_text failed")
        return text, (f"normalize_text failed ({type(error).__name__}); the text is read as it is",)


def _check_numbers(request: SynthesisRequest) -> None:
    for field in ("duration", "speed", "seed"):
        value = getattr(request, field)
        if value is not None:
            BOUNDS[field].check(field, value)
    if request.seed is not None and not isinstance(request.seed, int):
        raise InvalidRequest("seed", "must be a whole number")


def _total_frames(text: str, request: SynthesisRequest, reference: Reference | None) -> int:
    if request.duration is not None:
        return max(1, int(request.duration * FRAME_RATE))
    return _estimate(text, reference, speed=request.speed or 1.0)


def _estimate(text: str, reference: Reference | None, speed: float = 1.0) -> int:
    if reference is None:
        return estimate_frames(text, speed=speed)
    return estimate_frames(text, reference.text, reference.frames, speed)


def _chunks(text: str, total: int, request: SynthesisRequest, reference: Reference | None) -> tuple[ChunkPlan, ...]:
    params: SamplingParams = request.params
    if total <= int(params.audio_chunk_threshold * FRAME_RATE):
        return (ChunkPlan(text, total),)
    field = "text" if request.duration is None else "duration"
    _check_total(field, total)
    max_chars = int(params.audio_chunk_duration * FRAME_RATE * len(text) / total)
    pieces = chunk_text(text, max(1, max_chars))
    paced_by_caller = request.duration is not None or (request.speed or 1.0) != 1.0
    lengths = _shared_lengths(pieces, total) if paced_by_caller else _own_lengths(pieces, reference)
    _check_total(field, sum(lengths))  # short chunks are paced slower: their sum may exceed the whole text's estimate
    limit = int(MAX_CHUNK_SECONDS * FRAME_RATE)
    if (longest := max(lengths)) > limit:
        raise InvalidRequest(
            field,
            f"asks for {longest / FRAME_RATE:,.0f} s of audio in one piece of text; at most {MAX_CHUNK_SECONDS:g} s",
        )
    return tuple(ChunkPlan(piece, frames) for piece, frames in zip(pieces, lengths, strict=True))


def _check_total(field: str, frames: int) -> None:
    if (seconds := frames / FRAME_RATE) > MAX_AUDIO_SECONDS:
        raise InvalidRequest(field, f"would take {seconds:,.0f} s of audio; at most {MAX_AUDIO_SECONDS:,.0f} s")


def _own_lengths(pieces: list[str], reference: Reference | None) -> list[int]:
    """Each chunk by its own text, paced by the voice in force: the caller's, or chunk 0's for the chunks after it."""
    first = _estimate(pieces[0], reference)
    if reference is None and first >= MIN_PACE_FRAMES:
        reference = Reference(pieces[0], first)
    return [first, *(_estimate(piece, reference) for piece in pieces[1:])]


def _shared_lengths(pieces: list[str], total: int) -> list[int]:
    """Split a total that the caller asked for by the chunks' weights, so that the sum is the total."""
    weight_ends = list(accumulate(text_weight(piece) for piece in pieces))
    ends = [round(total * weight / weight_ends[-1]) for weight in weight_ends]
    return [max(1, end - start) for start, end in pairwise([0, *ends])]
