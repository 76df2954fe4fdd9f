"""The text front end: lengths, prompts, chunks, languages and voice designs. Loads neither torch nor a model."""

from omnivoice.text.chunking import chunk_text
from omnivoice.text.combine import combine_text, contains_chinese, is_speakable
from omnivoice.text.duration import estimate_frames, text_weight
from omnivoice.text.instructs import INSTRUCT_ITEMS, resolve_instruct
from omnivoice.text.languages import LANGUAGES, Language, resolve_language
from omnivoice.text.normalize import normalize_text
from omnivoice.text.punctuation import add_punctuation
from omnivoice.text.schedule import unmask_counts
from omnivoice.text.tags import NON_VERBAL_TAGS, clean_text, split_tags

__all__ = [
    "INSTRUCT_ITEMS",
    "LANGUAGES",
    "NON_VERBAL_TAGS",
    "Language",
    "add_punctuation",
    "chunk_text",
    "clean_text",
    "combine_text",
    "contains_chinese",
    "estimate_frames",
    "is_speakable",
    "normalize_text",
    "resolve_instruct",
    "resolve_language",
    "split_tags",
    "text_weight",
    "unmask_counts",
]
