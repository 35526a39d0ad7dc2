"""Mixed-precision, large-batch language modelling: the public names, resolved on first use.

Importing this package costs nothing: neither torch nor pandas is loaded before a name that needs it is touched.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

# name -> module of this distribution that defines it
_PUBLIC = {
    "MLSTM": "bigbatch.models.mlstm",
    "LSTM": "bigbatch.models.lstm",
    "MLSTMConfig": "bigbatch.models.config",
    "LSTMConfig": "bigbatch.models.config",
    "GPTConfig": "bigbatch.models.transformer_config",
    "BERTConfig": "bigbatch.models.transformer_config",
    "preset": "bigbatch.models.presets",
    "build_model": "bigbatch.models.build",
    "load_huggingface": "bigbatch.models.interchange.huggingface",
    "save_huggingface": "bigbatch.models.interchange.huggingface",
    "load_megatron": "bigbatch.models.interchange.megatron",
    "TrainConfig": "bigbatch.training.config",
    "train": "bigbatch.training.run",
    "load_model": "bigbatch.training.checkpoint",
    "evaluate_bpc": "bigbatch.training.evaluate",
    "TokenStore": "bigbatch.data.token_store",
    "load_tokenizer": "bigbatch.data.tokenizers",
    "load_labelled": "bigbatch.data.labelled",
    "Sampling": "bigbatch.inference.sampling",
    "decode": "bigbatch.inference.decode",
    "featurize": "bigbatch.sentiment.featurize",
    "MLSTMFeaturizer": "bigbatch.sentiment.estimators",
    "SentimentProbe": "bigbatch.sentiment.probe",
    "UnitProbe": "bigbatch.sentiment.units",
    "MultiLabelProbe": "bigbatch.sentiment.multilabel",
    "RidgeProbe": "bigbatch.sentiment.regression",
    "Classifier": "bigbatch.sentiment.classify",
    "publish": "bigbatch.sentiment.publish",
    "run_frame": "bigbatch.analysis.results",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'bigbatch' has no attribute {name!r}; public names: {', '.join(_PUBLIC)}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
