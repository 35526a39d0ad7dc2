"""`MLSTMFeaturizer`: a trained model as a scikit-learn transformer, from a list of texts to features.

    make_pipeline(MLSTMFeaturizer("runs/mine"), LogisticRegression()).fit(texts, labels)

The classifiers in scikit-learn's manner that go behind it are `probe.py` and `units.py`; the work is `featurize.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from ..training.checkpoint import LoadedModel, load_model
from ..training.distributed import resolve_device
from .featurize import StateKind, Transform, featurize
from .pooling import Pooling


class MLSTMFeaturizer(TransformerMixin, BaseEstimator):
    """Texts in, states of a trained byte language model out.

    `fit` loads the model and learns nothing. A pickle or a copy holds the parameters and the model's hash, not the
    weights: they are read again from the run folder, and have to be the same.

    Args:
        run_dir: Run folder of `bigbatch train`, or a checkpoint directory.
        which: "best" or "latest" checkpoint of a run folder.
        state: See `featurize`.
        state_transform: `transform` of `featurize`.
        layer: See `featurize`.
        pooling: See `featurize`.
        batch_size: See `featurize`.
        device: "cpu", "cuda" or "auto".
        cache_dir: Folder of cached features; worth its space under a grid search, which reads the same texts again.
        progress: Show a bar.

    Attributes:
        model_hash_: Of the weights.
        checkpoint_: Where they were read from.
        n_features_out_: Units of the model.
    """

    def __init__(
        self,
        run_dir: str | Path = "runs/demo",
        which: str = "best",
        state: StateKind = "cell",
        state_transform: Transform = "raw",
        layer: int = -1,
        pooling: Pooling = "last",
        batch_size: int = 128,
        device: str = "auto",
        cache_dir: str | Path | None = None,
        progress: bool = False,
    ) -> None:
        self.run_dir = run_dir
        self.which = which
        self.state: StateKind = state
        self.state_transform: Transform = state_transform
        self.layer = layer
        self.pooling: Pooling = pooling
        self.batch_size = batch_size
        self.device = device
        self.cache_dir = cache_dir
        self.progress = progress

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        assert tags.transformer_tags is not None
        tags.transformer_tags.preserves_dtype = []  # strings in, float32 out
        return tags

    def fit(self, X: Sequence[str], y: Any = None) -> MLSTMFeaturizer:
        """Loads the model.

        Args:
            X: Texts: a list, an array or a Series of strings. Only looked at, to fail early.
            y: Ignored.

        Raises:
            ValueError: No texts, or no model in the run folder.
        """
        _text_list(X)
        loaded = load_model(self.run_dir, str(resolve_device(self.device)), self.which)
        self._loaded = loaded
        self.model_hash_, self.checkpoint_ = loaded.model_hash, loaded.path
        self.n_features_out_ = int(loaded.config["model"]["hidden_size"])
        return self

    def transform(self, X: Sequence[str]) -> np.ndarray:
        """Features, shape (n, H), float32.

        Raises:
            ValueError: No texts, or (of a copy) a run folder whose weights are not those it was fitted with.
        """
        check_is_fitted(self, "model_hash_")
        texts = _text_list(X)
        loaded = self._loaded or self._load_again()
        return featurize(
            loaded.model, texts, state=self.state, transform=self.state_transform, layer=self.layer,
            pooling=self.pooling, batch_size=self.batch_size, cache_dir=self.cache_dir,
            model_hash=loaded.model_hash, progress=self.progress,
        )  # fmt: skip

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """`unit0`, `unit1`, ...: names for `set_output` and for tables."""
        check_is_fitted(self, "model_hash_")
        return np.array([f"unit{index}" for index in range(self.n_features_out_)], dtype=object)

    def _load_again(self) -> LoadedModel:
        recorded = self.checkpoint_ if self.checkpoint_.is_dir() else self.run_dir
        loaded = load_model(recorded, str(resolve_device(self.device)), self.which)
        if loaded.model_hash != self.model_hash_:
            raise ValueError(f"{loaded.path} holds other weights than this featurizer was fitted with; fit it again")
        self._loaded = loaded
        return loaded

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        assert isinstance(state, dict)
        return state | ({"_loaded": None} if "_loaded" in state else {})


def _text_list(X: Any) -> list[str]:
    """Texts as a list; what is not one-dimensional is refused here, what is no string by `featurize`."""
    if isinstance(X, (str, bytes)):
        raise ValueError("a single text was given where a list of texts is expected; write [text]")
    if np.ndim(X) != 1 and not isinstance(X, (list, tuple)):
        raise ValueError(f"texts of shape {np.shape(X)}: one column of texts is expected; choose it with X['column']")
    texts = list(X)
    if not texts:
        raise ValueError("no texts were given; at least one is needed")
    return [str(text) if isinstance(text, np.str_) else text for text in texts]
