"""The reference package, `omnivoice` 0.2.1, generation only: what its `generate` does before it decodes."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from bench.peers.protocol import FRAME_RATE, Work
from bench.peers.standins import empty_modules

AUDIO_PACKAGES = ("torchaudio", "soundfile", "pydub", "pydub.silence")
"""Imported by the package for files and post-processing; nothing of them is called while it generates."""


class Reference:
    """The package's model in eager mode with SDPA, as it deploys; its own text preparation and its own loop."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        module = import_module("omnivoice.models.omnivoice")
        transformers = import_module("transformers")
        # "train" leaves the tokenizers out; the text's is loaded below as the package does, the codec is not needed.
        self._model: Any = module.OmniVoice.from_pretrained(str(folder), train=True, dtype=dtype).to(device).eval()
        self._model.text_tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
        self._model.audio_tokenizer = SimpleNamespace(config=SimpleNamespace(frame_rate=FRAME_RATE))
        self._model.duration_estimator = module.RuleDurationEstimator()
        self._config_type = module.OmniVoiceGenerationConfig
        self._voice_type = module.VoiceClonePrompt
        self.info = {
            "package": f"omnivoice {importlib.metadata.version('omnivoice')}",
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "attention": str(self._model.llm.config._attn_implementation),
            "file": str(module.__file__),
        }

    @torch.inference_mode()
    def generate(self, work: Work) -> list[torch.Tensor]:
        config = self._config_type(num_step=work.num_step, position_temperature=work.position_temperature)
        voice = None
        if work.voice is not None:
            voice = self._voice_type(torch.tensor(work.voice.codes), work.voice.text, 0.1)
        task = self._model._preprocess_all(
            text=list(work.texts),
            language=work.language,
            voice_clone_prompt=voice,
            instruct=work.instructs,
            duration=work.duration,
        )
        codes: list[torch.Tensor] = self._model._generate_iterative(task, config)
        return codes


def load(site: Path, folder: Path, dtype: torch.dtype, device: torch.device) -> Reference:
    missing = [name for name in AUDIO_PACKAGES if importlib.util.find_spec(name.partition(".")[0]) is None]
    empty_modules(*missing)
    reference = Reference(folder, dtype, device)
    file = Path(reference.info["file"])
    if not file.is_relative_to(site):
        raise RuntimeError(f"{file} is not the reference package")
    reference.info["file"] = str(file.relative_to(site))
    return reference
