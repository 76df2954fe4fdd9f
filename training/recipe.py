"""What a training run is made of: sizes, steps and rates. `FULL` is for one GPU, `TINY` for a test of seconds."""

from __future__ import annotations

from dataclasses import dataclass

SEED = 20261130
"""Of everything: a step draws its numbers from the seed and its own index, so that a restart changes nothing."""

VOICES: dict[str, tuple[str, ...]] = {
    "slt": ("female", "american accent"),
    "rms": ("male", "american accent"),
    "awb": ("male", "british accent"),
}
"""The voices, by their name in flite, with the `instruct` items that fit (`awb` is Scottish)."""
DEFAULT_VOICE = "slt"
"""What is heard where a request has neither a reference voice nor an instruct."""
CODEBOOK_WEIGHTS = (8, 8, 6, 6, 4, 4, 2, 2)
"""What an error in each codebook counts in the model's objective."""


@dataclass(frozen=True, slots=True)
class CodecPhase:
    """`steps` batches of clips out of the first `num_parts` parts of the speech.

    `learning_rate` holds for the share `hold` of them, then falls to zero. The share `spared` of a batch passes as many
    codebooks as are drawn for each clip; the others pass all.
    """

    steps: int
    num_parts: int
    learning_rate: float
    hold: float
    spared: float


@dataclass(frozen=True, slots=True)
class CodecRecipe:
    """`down` and `up` are what each stage of the encoder and of the decoder divides and multiplies the rate by.

    `frames` is the length of a clip.
    """

    encoder_hidden: int
    decoder_hidden: int
    hidden: int
    codebook_dim: int
    batch: int
    phases: tuple[CodecPhase, ...]
    down: tuple[int, ...] = (3, 4, 8, 5, 2)
    up: tuple[int, ...] = (8, 5, 8, 3)
    frames: int = 32


@dataclass(frozen=True, slots=True)
class Phase:
    """`steps` batches of `tokens` packed rows; a document has up to `max_utterances` and `max_frames` to speak.

    Documents of more than `longest` rows are not taken. The share `referenced` of those with a prompt have a reference
    voice.
    """

    steps: int
    tokens: int
    max_utterances: int
    max_frames: int
    longest: int = 1_024
    referenced: float = 0.3

    @property
    def frames(self) -> int:
        """How many of the rows may be audio."""
        return self.tokens * 3 // 4

    @property
    def sequences(self) -> int:
        return self.tokens // 64

    @property
    def num_filling(self) -> int:
        """Sequences that the rows behind the last document may need."""
        return -(-self.tokens // self.longest)


@dataclass(frozen=True, slots=True)
class GeneratorRecipe:
    """The learning rates are constant through all phases but the last, in which they fall to zero.

    `text_vocab` is more than the bytes and control tokens need: the reference package looks up audio codes, 1,024 among
    them, in the text table too, before it drops what it found.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    phases: tuple[Phase, ...]
    matrix_rate: float = 0.02
    table_rate: float = 3e-3
    other_rate: float = 2e-3
    text_vocab: int = 1_040
    rope_theta: float = 1e4


@dataclass(frozen=True, slots=True)
class Recipe:
    """`num_lines` are spoken, each by `voices_per_line` of the voices; `part_lines` of them make a part."""

    num_lines: int
    voices_per_line: int
    part_lines: int
    codec: CodecRecipe
    generator: GeneratorRecipe


FULL = Recipe(
    num_lines=50_000,
    voices_per_line=1,
    part_lines=250,
    codec=CodecRecipe(
        encoder_hidden=8,
        decoder_hidden=256,
        hidden=64,
        codebook_dim=12,
        batch=64,
        phases=(
            CodecPhase(9_000, num_parts=28, learning_rate=8e-4, hold=0.5, spared=0.5),
            CodecPhase(10_400, num_parts=56, learning_rate=7.2e-4, hold=0.0, spared=0.25),
        ),
    ),
    generator=GeneratorRecipe(
        hidden=192,
        layers=7,
        heads=4,
        kv_heads=2,
        head_dim=64,
        ffn=384,
        phases=(Phase(6_000, 32_768, 1, 500), Phase(28_500, 49_152, 7, 750, longest=2_048, referenced=0.4)),
    ),
)
TINY = Recipe(
    num_lines=30,
    voices_per_line=2,
    part_lines=10,
    codec=CodecRecipe(
        encoder_hidden=2,
        decoder_hidden=32,
        hidden=16,
        codebook_dim=4,
        batch=2,
        phases=(
            CodecPhase(16, num_parts=1, learning_rate=8e-4, hold=0.5, spared=0.5),
            CodecPhase(8, num_parts=2, learning_rate=8e-4, hold=0.0, spared=0.5),
        ),
        frames=8,
    ),
    generator=GeneratorRecipe(
        hidden=32,
        layers=2,
        heads=2,
        kv_heads=1,
        head_dim=16,
        ffn=64,
        phases=(Phase(12, 1_024, 1, 150), Phase(8, 1_536, 3, 300)),
    ),
)
RECIPES = {"full": FULL, "tiny": TINY}
