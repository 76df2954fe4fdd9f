"""Prompt ids: control tokens around text that can never become one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from omnivoice.errors import CheckpointError
from omnivoice.text import split_tags

CONTROL_TOKENS = (
    "<|denoise|>",
    "<|lang_start|>",
    "<|lang_end|>",
    "<|instruct_start|>",
    "<|instruct_end|>",
    "<|text_start|>",
    "<|text_end|>",
)


class PromptTokenizer:
    """Byte-level BPE of a checkpoint, with special tokens off for everything that a user wrote."""

    def __init__(self, tokenizer: Tokenizer, control_ids: Mapping[str, int]) -> None:
        self._tokenizer = tokenizer
        self._control_ids = dict(control_ids)
        self._cached = lru_cache(maxsize=1024)(self.encode)
        """For what many requests have in common."""

    @classmethod
    def from_folder(cls, folder: Path, text_vocab_size: int) -> PromptTokenizer:
        """Read `tokenizer.json`; raise `CheckpointError` naming the file, or the control token that it lacks."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception for every kind of bad file
            raise CheckpointError(f"{path}: cannot be read as a tokenizer ({error})") from None
        special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
        control_ids = {}
        for token in CONTROL_TOKENS:
            index = tokenizer.token_to_id(token)
            if index is None or token not in special:
                raise CheckpointError(f"{path}: control token {token} is missing")
            control_ids[token] = index
        if (size := tokenizer.get_vocab_size()) > text_vocab_size:
            raise CheckpointError(f"{path}: {size} entries, but the model has rows for {text_vocab_size}")
        # Text that spells a special token is then split like any other text.
        tokenizer.encode_special_tokens = True
        return cls(tokenizer, control_ids)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. Each non-verbal tag is encoded on its own, so its ids do not depend on its neighbours."""
        return [
            index for piece in split_tags(text) for index in self._tokenizer.encode(piece, add_special_tokens=False).ids
        ]

    def prompt(self, text: str, language: str | None, instruct: str | None, denoise: bool) -> list[int]:
        """Ids before the reference codes: `[denoise] lang … instruct … text …`."""
        control = self._control_ids
        ids = [control["<|denoise|>"]] if denoise else []
        for name, content in (
            ("lang", self._cached(language or "None")),
            ("instruct", self._cached(instruct or "None")),
            ("text", self.encode(text)),
        ):
            ids += [control[f"<|{name}_start|>"], *content, control[f"<|{name}_end|>"]]
        return ids
