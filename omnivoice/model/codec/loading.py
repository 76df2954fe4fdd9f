"""From the files of a checkpoint's `audio_tokenizer` folder to a network on its device."""

from __future__ import annotations

from pathlib import Path

import torch

from omnivoice.errors import CheckpointError
from omnivoice.model.checkpoint import load_tensors
from omnivoice.model.codec.config import one_line, read_codec_config
from omnivoice.model.codec.network import CodecNetwork, tensor_shapes


def load_network(folder: Path, device: torch.device, dtype: torch.dtype) -> CodecNetwork:
    """Build the network that `folder/config.json` describes and fill it from `folder/model.safetensors`, strictly.

    Tensors that only training needs must be in the file but are not kept. Raises `CheckpointError`.
    """
    network, expected = empty_network(folder)
    tensors = load_tensors(folder / "model.safetensors", expected)
    network.load_state_dict({name: tensors[name].to(device, dtype) for name in network.state_dict()}, assign=True)
    return network.requires_grad_(False).eval()


def empty_network(folder: Path) -> tuple[CodecNetwork, dict[str, tuple[int, ...]]]:
    """The network that `folder/config.json` describes, without memory, and the shapes of the tensors that its file
    must hold, by name. Raises `CheckpointError`.
    """
    path = folder / "config.json"
    config = read_codec_config(path)
    try:
        # Without memory behind it: the weights are assigned at once in the wanted dtype.
        with torch.device("meta"):
            network = CodecNetwork(config)
        return network, tensor_shapes(network, config)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: no network has these sizes ({one_line(error)})") from None
