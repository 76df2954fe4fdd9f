"""Higgs Audio v2 tokenizer: 24 kHz waveforms to eight codebooks at 25 frames a second, and back."""

from omnivoice.model.codec.codec import Codec

__all__ = ["Codec"]
