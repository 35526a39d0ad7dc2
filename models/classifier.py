"""A text classifier: a recurrent language model as encoder and a small head on its final state.

The head reads the state after the last byte of a text, as the probes of `sentiment/` do; what differs is that encoder and
head are trained together (`training/tasks/classify.py`).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from .config import ClassifierConfig
from .lstm import LSTM
from .mlstm import MLSTM
from .recurrent import RecurrentLanguageModel, RecurrentState

ENCODERS = {"mlstm": MLSTM, "lstm": LSTM}


class Head(nn.Module):
    """MLP from features (B, H) to scores (B, K): PReLU and dropout after every inner layer.

    Args:
        sizes: H, the inner widths, K.
        dropout: probability, on the features too.
    """

    def __init__(self, sizes: list[int], dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Dropout(dropout)]
        for number, (size, following) in enumerate(pairwise(sizes)):
            if number:
                layers += [nn.PReLU(), nn.Dropout(dropout)]
            layers.append(nn.Linear(size, following))
        self.layers = nn.Sequential(*layers)

    @property
    def last(self) -> nn.Linear:
        layer = self.layers[-1]
        assert isinstance(layer, nn.Linear)
        return layer

    def forward(self, features: Tensor) -> Tensor:
        return self.layers(features)


class TextClassifier(nn.Module):
    """Encoder, and `num_heads` heads whose scores are averaged for a prediction.

    Args:
        config: sizes and classes; kept as `model.config`.
    """

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder: RecurrentLanguageModel = ENCODERS[config.encoder.kind](config.encoder)  # pyright: ignore
        head = config.head
        sizes = [config.encoder.hidden_size, *head.hidden_sizes, len(config.classes)]
        self.heads = nn.ModuleList(Head(sizes, head.dropout) for _ in range(head.num_heads))

    @property
    def fp32_parameter_names(self) -> frozenset[str]:
        """Parameters that a half-precision policy must leave in fp32."""
        return frozenset(f"encoder.{name}" for name in self.encoder.fp32_parameter_names)

    def parameter_depth(self, name: str) -> int:
        """How far a parameter lies below the output: 0 for the heads, 1 for the last layer of the encoder, and so on.

        The embedding lies deepest; the encoder's output layer, used for the language model only, counts as its last.
        """
        if name.startswith("heads."):
            return 0
        layers = self.config.encoder.num_layers
        if name.startswith("encoder.layers."):
            return layers - int(name.split(".")[2])
        return layers + 1 if name.startswith("encoder.embedding") else 1

    def head_variance(self) -> Tensor:
        """Variance over the heads of their last weights, summed and divided by the number of classes: scalar fp32."""
        weights = torch.stack([head.last.weight.float() for head in self._heads()])
        return weights.var(dim=0, unbiased=False).sum() / len(self.config.classes)

    def forward(
        self,
        tokens: Tensor,
        lengths: Tensor,
        state: RecurrentState | None = None,
        with_logits: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Scores of texts.

        Args:
            tokens: uint8 (B, T), padded at the end.
            lengths: int64 (B,), bytes of each text, at least 1.
            state: of the encoder before these tokens; zeros if None.
            with_logits: also the language model's logits.

        Returns:
            Scores (B, heads, K) in fp32, and logits (B, T, V) or None.
        """
        logits = None
        if with_logits:
            logits, final = self.encoder(tokens, state, None, lengths)
        else:
            _, final = self.encoder.encode(tokens, state, None, lengths)
        return self.score(final), logits

    def score(self, state: RecurrentState) -> Tensor:
        """Scores (B, heads, K) in fp32 from the encoder's final state."""
        return self.score_features((state.cell if self.config.head.state == "cell" else state.hidden)[-1])

    def score_features(self, features: Tensor) -> Tensor:
        """Scores (B, heads, K) in fp32 from features (B, H)."""
        return torch.stack([head(features.to(head.last.weight.dtype)) for head in self._heads()], dim=1).float()

    def _heads(self) -> list[Head]:
        return [head for head in self.heads if isinstance(head, Head)]
