"""From a configuration to a module, and from tensors to its weights. A new family is one line here and one file beside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import overload

import torch
from torch import Tensor, nn

from .bert import BERT, build_bert
from .config import ModelConfig
from .gpt import GPT
from .lstm import LSTM
from .mlstm import MLSTM
from .recurrent import RecurrentLanguageModel
from .transformer_config import BERTConfig, GPTConfig

FAMILIES = {"mlstm": MLSTM, "lstm": LSTM, "gpt": GPT, "bert": build_bert}


@overload
def build_model(config: ModelConfig) -> RecurrentLanguageModel: ...


@overload
def build_model(config: GPTConfig) -> GPT: ...


@overload
def build_model(config: BERTConfig) -> BERT: ...


def build_model(config: ModelConfig | GPTConfig | BERTConfig) -> nn.Module:
    """Builds the model of a configuration in fp32, initialised from torch's generator.

    Under `torch.device("meta")` it takes no memory, whatever its size.

    Raises:
        ValueError: no family has this `kind`.
    """
    if config.kind not in FAMILIES:
        raise ValueError(f"model.kind is {config.kind!r}: the kinds are {', '.join(FAMILIES)}")
    return FAMILIES[config.kind](config)


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Copies tensors into a model's parameters; all of them or, if they do not fit, none.

    Args:
        model: the model.
        tensors: one for each of its parameters, by name.
        source: where they come from, for the message.

    Raises:
        ValueError: the tensors are another architecture's; names the first that is missing, unknown or of another shape.
    """
    own = dict(model.named_parameters())
    for name, parameter in own.items():
        if name not in tensors:
            raise ValueError(f"{source} is of another architecture: it has no {name} {tuple(parameter.shape)}")
        if tensors[name].shape != parameter.shape:
            raise ValueError(
                f"{source} is of another architecture: {name} is {tuple(tensors[name].shape)} there and "
                f"{tuple(parameter.shape)} in the model"
            )
    for name, tensor in tensors.items():
        if name not in own:
            raise ValueError(f"{source} is of another architecture: the model has no {name} {tuple(tensor.shape)}")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])
