"""GPT-2: a language model of pre-norm layers with learned positions and a tied output layer; decoding with a cache.

Which token comes next is chosen by the caller; losses belong to the training task.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .layers import Past, TransformerLayer, check_tokens, initialise, layer_norm, run_layer, vocabulary_logits
from .transformer_config import GPTConfig


class KVCache(NamedTuple):
    """Keys and values of the tokens read so far, passed in and out; the tensors are written in place.

    Attributes:
        keys: (L, B, A, P, D) in the compute dtype; P positions at most, D = H / A.
        values: (L, B, A, P, D).
        lengths: int64 (B,), tokens that each row has read.
        used: at least the largest of `lengths`, known without asking the device.
    """

    keys: Tensor
    values: Tensor
    lengths: Tensor
    used: int

    def select(self, index: Tensor) -> KVCache:
        """A cache of its own for the rows `index` (int64, over B), in that order."""
        keys, values = self.keys.index_select(1, index), self.values.index_select(1, index)
        return KVCache(keys, values, self.lengths.index_select(0, index), self.used)


class GPT(nn.Module):
    """GPT-2 in fp32, initialised from torch's generator.

    Args:
        config: sizes; kept as `model.config`.

    Source: Radford et al. 2019; Shoeybi et al. 2019 for the larger sizes.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.padded_vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(
            TransformerLayer(config, causal=True, pre_norm=True) for _ in range(config.num_layers)
        )
        self.final_norm = layer_norm(config)
        initialise(self, config, scaled=True)

    def init_cache(self, batch_size: int, max_length: int | None = None, dtype: torch.dtype | None = None) -> KVCache:
        """An empty cache for `batch_size` rows of up to `max_length` tokens (all positions if None)."""
        config, weight = self.config, self.embedding.weight
        length = min(max_length or config.max_position_embeddings, config.max_position_embeddings)
        heads = config.num_attention_heads
        shape = (config.num_layers, batch_size, heads, length, config.hidden_size // heads)
        keys = torch.zeros(shape, device=weight.device, dtype=dtype or weight.dtype)
        lengths = torch.zeros(batch_size, dtype=torch.int64, device=weight.device)
        return KVCache(keys, torch.zeros_like(keys), lengths, 0)

    def forward(
        self, tokens: Tensor, cache: KVCache | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, KVCache | None]:
        """Logits of the token after each position.

        Args:
            tokens: integer (B, T).
            cache: what was read before, from `init_cache` or the last call; for reading with gradients off.
            lengths: with a cache, int64 (B,): tokens at t >= lengths[b] are padding that row b does not keep.

        Returns:
            Logits (B, T, padded V) in the compute dtype, and the cache after these tokens (None without one).

        Raises:
            ValueError: too many tokens for the positions or the cache, an id outside the vocabulary, shapes that do not
                fit together.
        """
        hidden, cache = self.encode(tokens, cache, lengths)
        return self.logits(hidden), cache

    def encode(
        self, tokens: Tensor, cache: KVCache | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, KVCache | None]:
        """Features (B, T, H) after the last norm instead of logits; arguments as in `forward`."""
        check_tokens(tokens, self.config, 0 if cache is None else cache.used)
        if cache is not None:
            return self._read_on(tokens, cache, lengths)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self._embed(tokens, positions)
        for layer in self.layers:
            hidden = run_layer(layer, hidden, None, self.config.recompute == "full")
        return self.final_norm(hidden), None

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., padded V) of features (..., H); rows beyond the vocabulary never win."""
        return vocabulary_logits(hidden, self.embedding.weight, None, self.config.vocab_size)

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        hidden = self.embedding(tokens.long()) + self.positions(positions)
        return F.dropout(hidden, self.config.dropout, self.training)

    def _read_on(self, tokens: Tensor, cache: KVCache, lengths: Tensor | None) -> tuple[Tensor, KVCache]:
        (rows, time), room = tokens.shape, cache.keys.shape[3]
        if cache.keys.shape[1] != rows:
            raise ValueError(f"the cache holds {cache.keys.shape[1]} rows but there are {rows} rows of tokens")
        if lengths is not None and lengths.shape != (rows,):
            raise ValueError(f"lengths must be ({rows},), one for each row of tokens, not {tuple(lengths.shape)}")
        used = cache.used + time
        if used > room:
            raise ValueError(f"the cache has room for {room} tokens, not for {used}: make it with a larger max_length")
        positions = cache.lengths[:, None] + torch.arange(time, device=tokens.device)
        hidden = self._embed(tokens, positions)
        for layer, keys, values in zip(self.layers, cache.keys, cache.values, strict=True):
            hidden = layer(hidden, None, Past(keys, values, positions, used))
        read = cache.lengths + (time if lengths is None else lengths)
        return self.final_norm(hidden), KVCache(cache.keys, cache.values, read, used)
