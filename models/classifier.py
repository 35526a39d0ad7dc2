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


class TextClassifier(nn.Module):
    """Encoder, inner layers on its final state, and `num_heads` linear heads whose scores are averaged for a prediction.

    PReLU and dropout follow every inner layer, dropout the state too.

    Args:
        config: sizes and classes; kept as `model.config`.
    """

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder: RecurrentLanguageModel = ENCODERS[config.encoder.kind](config.encoder)  # pyright: ignore
        head = config.head
        inner: list[nn.Module] = [nn.Dropout(head.dropout)]
        sizes = [config.encoder.hidden_size, *head.hidden_sizes]
        for size, following in pairwise(sizes):
            inner += [nn.Linear(size, following), nn.PReLU(), nn.Dropout(head.dropout)]
        self.inner = nn.Sequential(*inner)
        self.heads = nn.Linear(sizes[-1], head.num_heads * len(config.classes))

    @property
    def fp32_parameter_names(self) -> frozenset[str]:
        """Parameters that a half-precision policy must leave in fp32."""
        return frozenset(f"encoder.{name}" for name in self.encoder.fp32_parameter_names)

    def parameter_depth(self, name: str) -> int:
        """How far a parameter lies below the output: 0 for heads and inner layers, 1 for the last layer of the encoder, and so on.

        The embedding lies deepest; the encoder's output layer, used for the language model only, counts as its last.
        """
        if name.startswith(("inner.", "heads.")):
            return 0
        layers = self.config.encoder.num_layers
        if name.startswith("encoder.layers."):
            return layers - int(name.split(".")[2])
        return layers + 1 if name.startswith("encoder.embedding") else 1

    def head_similarity(self) -> Tensor:
        """How alike the heads of a class are, scalar fp32: 0 where their weights are at right angles.

        For each head the root of the summed squared cosines between its weights and those of all heads of the class, less
        1; the mean over heads and classes.

        Source: `get_last_layer_variance` of NVIDIA/sentiment-discovery, which compares all heads of all classes.
        """
        weights = self.heads.weight.float().view(self.config.head.num_heads, len(self.config.classes), -1)
        unit = weights / weights.norm(dim=-1, keepdim=True)
        cosines = torch.einsum("gkd,hkd->kgh", unit, unit)
        return (cosines.norm(dim=-1) - 1).mean()

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
        scores = self.heads(self.inner(features.to(self.heads.weight.dtype)))
        return scores.float().view(len(features), self.config.head.num_heads, -1)
