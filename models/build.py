"""From a configuration to a module. A new family is one line here and one file beside this one."""

from __future__ import annotations

from .config import ModelConfig
from .lstm import LSTM
from .mlstm import MLSTM
from .recurrent import RecurrentLanguageModel

FAMILIES = {"mlstm": MLSTM, "lstm": LSTM}


def build_model(config: ModelConfig) -> RecurrentLanguageModel:
    """Builds the model of a configuration in fp32, initialised from torch's generator.

    Raises:
        ValueError: no family has this `kind`.
    """
    if config.kind not in FAMILIES:
        raise ValueError(f"model.kind is {config.kind!r}: the kinds are {', '.join(FAMILIES)}")
    return FAMILIES[config.kind](config)
