"""BERT: the encoder, as published or rearranged by Megatron, and the heads of pretraining and of fine-tuning.

Every head holds the encoder as `.encoder` under the same names, so that pretrained weights move from one to another.
Which tokens are masked is `data/bert_samples.py`; losses belong to the training task.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .layers import TransformerLayer, check_tokens, initialise, layer_norm, run_layer, vocabulary_logits
from .transformer_config import BERTConfig


class Encoding(NamedTuple):
    """What the encoder gives.

    Attributes:
        hidden: (B, T, H), one for each token.
        pooled: (B, H), of the first token through a layer and tanh; None where the model has no pooler.
    """

    hidden: Tensor
    pooled: Tensor | None


class PretrainingLogits(NamedTuple):
    """Logits of both objectives.

    Attributes:
        words: (B, T, padded V), or (N, padded V) at the N chosen places.
        sentences: (B, 2), the first for texts in order (NSP: for the next one); None without a sentence head.
    """

    words: Tensor
    sentences: Tensor | None


class AnswerLogits(NamedTuple):
    """Where an answer starts and ends: logits (B, T) each."""

    start: Tensor
    end: Tensor


class BERTEncoder(nn.Module):
    """Embeddings of words, positions and segments, L layers, and the pooler where the head reads it.

    Args:
        config: sizes.

    Source: Devlin et al. 2018 (arXiv 1810.04805); pre-norm form: Shoeybi et al. 2019 (arXiv 1909.08053), section 5.3.
    """

    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        self.config = config
        pre_norm = config.layer_norm == "pre"
        self.embedding = nn.Embedding(config.padded_vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_types = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.embedding_norm = None if pre_norm else layer_norm(config)
        self.layers = nn.ModuleList(
            TransformerLayer(config, causal=False, pre_norm=pre_norm) for _ in range(config.num_layers)
        )
        self.final_norm = layer_norm(config) if pre_norm else None
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if config.has_pooler else None

    def forward(self, tokens: Tensor, token_types: Tensor | None = None, mask: Tensor | None = None) -> Encoding:
        """Encodes tokens (B, T); see `BERT`."""
        config = self.config
        check_tokens(tokens, config)
        for name, tensor in (("token_types", token_types), ("mask", mask)):
            if tensor is not None and tensor.shape != tokens.shape:
                raise ValueError(f"{name} must be {tuple(tokens.shape)} as the tokens are, not {tuple(tensor.shape)}")
        types = torch.zeros_like(tokens) if token_types is None else token_types
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.embedding(tokens.long()) + self.positions(positions) + self.token_types(types.long())
        if self.embedding_norm is not None:
            hidden = self.embedding_norm(hidden)
        hidden = F.dropout(hidden, config.dropout, self.training)
        seen = None if mask is None else mask.bool()[:, None, None, :]
        for layer in self.layers:
            hidden = run_layer(layer, hidden, seen, config.recompute == "full")
        if self.final_norm is not None:
            hidden = self.final_norm(hidden)
        return Encoding(hidden, None if self.pooler is None else torch.tanh(self.pooler(hidden[:, 0])))


class BERT(nn.Module):
    """The encoder alone, in fp32, initialised from torch's generator; also the base of the models with heads.

    All of them are called with

        tokens: integer (B, T); the first of a row is [CLS].
        token_types: integer (B, T), the segment of each token; all 0 if None.
        mask: bool or integer (B, T), true where a token is no padding; all if None.

    and raise ValueError for more tokens than positions, an id outside the vocabulary or shapes that do not fit together.

    Args:
        config: sizes; kept as `model.config`.
    """

    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = BERTEncoder(config)
        self._add_head(config)
        initialise(self, config, scaled=config.layer_norm == "pre")

    def _add_head(self, config: BERTConfig) -> None:
        """Builds what stands upon the encoder."""

    def forward(self, tokens: Tensor, token_types: Tensor | None = None, mask: Tensor | None = None) -> Encoding:
        """Features of every token and of the sequence."""
        return self.encoder(tokens, token_types, mask)

    def _pooled(self, tokens: Tensor, token_types: Tensor | None, mask: Tensor | None) -> Tensor:
        pooled = self.encoder(tokens, token_types, mask).pooled
        return F.dropout(pooled, self.config.dropout, self.training)


class BERTForPretraining(BERT):
    """Masked words, with the output layer tied to the embedding; and the sentence head, if the configuration has one."""

    def _add_head(self, config: BERTConfig) -> None:
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.transform_norm = layer_norm(config)
        self.word_bias = nn.Parameter(torch.zeros(config.padded_vocab_size))
        self.sentence = None if config.sentence_head == "none" else nn.Linear(config.hidden_size, 2)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        tokens: Tensor,
        token_types: Tensor | None = None,
        mask: Tensor | None = None,
        places: Tensor | None = None,
    ) -> PretrainingLogits:
        """Logits of words and sentences.

        Args:
            tokens: see `BERT`, as are token_types and mask.
            places: bool (B, T) or int64 (N,) into the flattened (B * T): compute words there only, which saves most of
                the work of the output layer.
        """
        hidden, pooled = self.encoder(tokens, token_types, mask)
        if places is not None:
            hidden = hidden.flatten(0, 1)[places.flatten()]
        approximate = "tanh" if self.config.activation == "gelu_tanh" else "none"
        features = self.transform_norm(F.gelu(self.transform(hidden), approximate=approximate))
        words = vocabulary_logits(features, self.encoder.embedding.weight, self.word_bias, self.config.vocab_size)
        return PretrainingLogits(words, None if self.sentence is None else self.sentence(pooled))


class BERTForClassification(BERT):
    """One label for a text or a pair of texts: logits (B, num_labels)."""

    def _add_head(self, config: BERTConfig) -> None:
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, tokens: Tensor, token_types: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Logits (B, num_labels)."""
        return self.classifier(self._pooled(tokens, token_types, mask))


class BERTForQuestionAnswering(BERT):
    """An answer as a stretch of the text, as in SQuAD."""

    def _add_head(self, config: BERTConfig) -> None:
        self.answer = nn.Linear(config.hidden_size, 2)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, tokens: Tensor, token_types: Tensor | None = None, mask: Tensor | None = None
    ) -> AnswerLogits:
        """Logits of start and end; padding is not masked, as in the published code."""
        start, end = self.answer(self.encoder(tokens, token_types, mask).hidden).unbind(-1)
        return AnswerLogits(start, end)


class BERTForMultipleChoice(BERT):
    """One of C candidate texts, as in RACE: tokens, token_types and mask are (B, C, T)."""

    def _add_head(self, config: BERTConfig) -> None:
        self.choice = nn.Linear(config.hidden_size, 1)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, tokens: Tensor, token_types: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Logits (B, C)."""
        if tokens.dim() != 3:
            raise ValueError(f"tokens must be (batch, choices, time), not {tuple(tokens.shape)}")
        flat = (None if part is None else part.flatten(0, 1) for part in (tokens, token_types, mask))
        return self.choice(self._pooled(*flat)).view(tokens.shape[:2])  # pyright: ignore[reportArgumentType]


HEADS: dict[str, type[BERT]] = {
    "encoder": BERT,
    "pretraining": BERTForPretraining,
    "classification": BERTForClassification,
    "question_answering": BERTForQuestionAnswering,
    "multiple_choice": BERTForMultipleChoice,
}


def build_bert(config: BERTConfig) -> BERT:
    """The model with the head that the configuration names."""
    return HEADS[config.head](config)
