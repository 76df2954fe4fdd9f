"""`vllm-omni` 0.30.0's OmniVoice pipeline, generation only: its `forward` over a request batch, with codes for audio.

Its pipeline, generator, CUDA graphs, Triton kernels and FlashAttention backend run as they are. What stands in: `vllm`
itself (see `standins`), the layer that would choose among attention backends (on Hopper it takes FLASH_ATTN, as here),
the codec, the cache of encoded voices and the estimate of a text's length, which the benchmark fixes.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from bench.peers.protocol import Work
from bench.peers.standins import CudaPlatform, add_module, add_package, add_vllm, empty_modules

MAX_NUM_SEQS = 8
"""Of the package's `deploy/omnivoice.yaml`: for up to so many requests graphs are captured at start."""

PACKAGES_WITHOUT_INIT = (
    "vllm_omni",
    "vllm_omni.diffusion",
    "vllm_omni.diffusion.attention",
    "vllm_omni.diffusion.attention.backends",
    "vllm_omni.diffusion.attention.backends.utils",
    "vllm_omni.diffusion.models",
    "vllm_omni.diffusion.models.omnivoice",
    "vllm_omni.model_executor",
    "vllm_omni.model_executor.models",
    "vllm_omni.model_executor.models.omnivoice",
    "vllm_omni.transformers_utils",
    "vllm_omni.transformers_utils.configs",
)
"""Their `__init__` files would load the whole of vllm; the modules inside are the package's own."""

PIPELINE = "vllm_omni.diffusion.models.omnivoice.pipeline_omnivoice"
GENERATOR = "vllm_omni.model_executor.models.omnivoice.omnivoice_generator"
BACKENDS = "vllm_omni.diffusion.attention.backends"


FLASH_ATTENTION_3 = "fa3_fwd_interface"
"""The wheel that vllm-omni depends on for its attention on Hopper. Without it, torch's FlashAttention 2 stands in."""


def drop_broken_flash_attention() -> str:
    """Try FlashAttention 3 on a few rows; hide it from the package if it does not run here, and say why."""
    if not torch.cuda.is_available():
        return "needs CUDA"
    try:
        attend = import_module(FLASH_ATTENTION_3).flash_attn_varlen_func
        rows = torch.randn(32, 2, 128, device="cuda", dtype=torch.bfloat16)
        offsets = torch.tensor([0, 20, 32], device="cuda", dtype=torch.int32)
        attend(
            q=rows,
            k=rows,
            v=rows,
            cu_seqlens_q=offsets,
            cu_seqlens_k=offsets,
            max_seqlen_q=32,
            max_seqlen_k=32,
            causal=False,
            softmax_scale=128**-0.5,
        )
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001  a wheel for another torch fails in many ways
        sys.modules[FLASH_ATTENTION_3] = None  # type: ignore[assignment]  # importing it now raises ImportError
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "runs"


class Attention(nn.Module):
    """The package's backend of a device, without the layer's parallelism, paging and quantisation, all off here."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        causal: bool,
        softmax_scale: float,
        num_kv_heads: int | None = None,
        prefix: str = "",
        qkv_layout: str | None = None,
        skip_sequence_parallel: bool = False,
    ) -> None:
        super().__init__()
        sdpa = import_module(f"{BACKENDS}.sdpa").SDPABackend
        flash = import_module(f"{BACKENDS}.flash_attn").FlashAttentionBackend
        self.attn_backend = flash if torch.cuda.is_available() else sdpa
        options: dict[str, Any] = {
            "num_heads": num_heads,
            "head_size": head_size,
            "softmax_scale": softmax_scale,
            "causal": causal,
            "num_kv_heads": num_kv_heads,
            "qkv_layout": qkv_layout,
        }
        self.attention = self.attn_backend.get_impl_cls()(prefix=prefix, **options)
        self.sdpa_fallback = sdpa.get_impl_cls()(**options)

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, metadata: object) -> torch.Tensor:
        attended: torch.Tensor = self.attention.forward(query, key, value, metadata)
        return attended


class NoDecoder(nn.Module):
    """In the place of the codec: the pipeline's "audio" is the codes."""

    def __init__(self, config: object) -> None:
        super().__init__()

    def load_weights(self, folder: str, device: torch.device) -> None:
        """There is nothing to load."""

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return codes


class FixedLength:
    """In the place of the duration estimator: the frames that the work asks for."""

    frames = 0

    def estimate_duration(self, *_: object) -> int:
        return self.frames


class OneVoice:
    """In the place of the cache of uploaded voices: it holds the work's voice, encoded."""

    codes: torch.Tensor | None = None

    def make_cache_key(self, *_: object, **__: object) -> str:
        return "voice"

    def get(self, key: str) -> dict[str, torch.Tensor] | None:
        return None if self.codes is None else {"ref_audio_tokens": self.codes}


def add_stand_ins(site: Path, device: torch.device) -> None:
    """Make the package's pipeline importable from `site` without vllm."""
    add_vllm()
    for name in PACKAGES_WITHOUT_INIT:
        add_package(name, site.joinpath(*name.split(".")))
    add_module("vllm_omni.platforms", current_omni_platform=CudaPlatform())
    add_module("vllm_omni.diffusion.attention.layer", Attention=Attention)
    add_module("vllm_omni.diffusion.data", DiffusionOutput=SimpleNamespace, OmniDiffusionConfig=SimpleNamespace)
    add_package("vllm_omni.diffusion.distributed")
    add_module("vllm_omni.diffusion.distributed.utils", get_local_device=lambda: device)
    add_module("vllm_omni.diffusion.models.interface", SupportAudioOutput=object)
    worker = "vllm_omni.diffusion.worker"
    empty_modules(worker, f"{worker}.input_batch", f"{worker}.request_batch", f"{worker}.utils")
    add_module("vllm_omni.model_executor.models.omnivoice.omnivoice_decoder", OmniVoiceDecoder=NoDecoder)
    add_package("vllm_omni.utils")
    add_module("vllm_omni.utils.speaker_cache", get_speaker_cache=OneVoice)
    if importlib.util.find_spec("torchaudio") is None:  # only to resample reference clips
        empty_modules("torchaudio")


class VllmOmni:
    """The package's pipeline in request mode."""

    def __init__(self, site: Path, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        add_stand_ins(site, device)
        flash_attention_3 = drop_broken_flash_attention()
        generator_module: Any = import_module(GENERATOR)
        pipeline_module: Any = import_module(PIPELINE)
        if device.type != "cuda":
            generator_module._TRITON_AVAILABLE = False  # its own switch; it does not look at the device
        pipeline_module.HiggsAudioV2TokenizerModel = None  # the encoder of reference clips, which are encoded already
        config = SimpleNamespace(model=str(folder), max_num_seqs=MAX_NUM_SEQS, dtype=dtype)
        # As the package's loader does: built on the device, in the deployment's dtype.
        default = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with device:
                self._pipeline: Any = pipeline_module.OmniVoicePipeline(od_config=config)
            self._pipeline.load_weights(())
        finally:
            torch.set_default_dtype(default)
        self._pipeline.eval()
        self._pipeline.audio_tokenizer = True  # "voices can be cloned": their codes come from the cache
        self._pipeline.duration_estimator = FixedLength()
        generator = self._pipeline.generator
        flash_attention = import_module(f"{BACKENDS}.utils.fa").flash_attn_varlen_func
        is_packed = not generator._needs_sdpa_mask
        self.info = {
            "package": f"vllm-omni {_version(site)}",
            "dtype": str(generator.model_dtype).removeprefix("torch."),
            "attention": flash_attention.__module__ if is_packed else "sdpa",
            "fa3_fwd": flash_attention_3,
            "cuda_graphs": str(generator._cuda_graph_fwd is not None and device.type == "cuda"),
            "triton_kernels": str(generator_module._TRITON_AVAILABLE),
            "file": str(Path(str(generator_module.__file__)).relative_to(site)),
        }

    def generate(self, work: Work) -> list[torch.Tensor]:
        pipeline = self._pipeline
        pipeline.duration_estimator.frames = work.frames
        pipeline.position_temperature = work.position_temperature
        prompt: dict[str, object] = {"lang": work.language}
        if work.voice is not None:
            pipeline._speaker_cache.codes = torch.tensor(work.voice.codes)
            prompt |= {"ref_text": work.voice.text, "ref_audio": ((), 0), "voice_name": "voice"}
        requests = [
            SimpleNamespace(
                prompt=prompt | {"input": text},
                sampling_params=SimpleNamespace(
                    extra_args={"seed": seed}, num_inference_steps=work.num_step, guidance_scale=None
                ),
            )
            for seed, text in enumerate(work.texts)
        ]
        outputs = pipeline.forward(SimpleNamespace(requests=requests))
        return [output.output[0] for output in outputs]


def _version(site: Path) -> str:
    (metadata,) = site.glob("vllm_omni-*.dist-info")
    return metadata.name.removeprefix("vllm_omni-").removesuffix(".dist-info")


def load(site: Path, folder: Path, dtype: torch.dtype, device: torch.device) -> VllmOmni:
    return VllmOmni(site, folder, dtype, device)
