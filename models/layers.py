"""What GPT and BERT share: attention, MLP, the layer in both orders of its norms, initial weights, checks of the input.

Plain fp32 modules. Under a half-precision policy their weights arrive cast; layer norm then still takes its statistics
and attention its softmax in fp32, inside PyTorch's own kernels (`tests/unit/models/test_layers.py` holds them to it).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .transformer_config import TransformerConfig


class Past(NamedTuple):
    """What a layer of attention has seen of earlier windows, and where this window stands.

    Attributes:
        keys: (B, A, P, D), written in place; P positions, D = H / A.
        values: (B, A, P, D), likewise.
        positions: int64 (B, T), the place of each token of this window.
        used: positions of which any row holds something, this window included.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor
    used: int


class Attention(nn.Module):
    """Multi-head attention of a sequence to itself.

    The rows of `qkv` are ordered (head, q k v, D), Megatron's order since 2.0: a contiguous part of them holds whole
    heads, so that tensor parallelism can cut it. The number of heads is read off the weights at hand.

    Args:
        config: sizes.
        causal: a token sees those up to itself only.
    """

    def __init__(self, config: TransformerConfig, causal: bool) -> None:
        super().__init__()
        self.head_size = config.hidden_size // config.num_attention_heads
        self.causal, self.dropout = causal, config.attention_dropout
        self.recompute = config.recompute == "selective"
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, mask: Tensor | None = None, past: Past | None = None) -> Tensor:
        """Attends within (B, T, H); `mask` is bool (B, 1, 1 or T, T), True where a token may be seen."""
        split = self.qkv(hidden).unflatten(-1, (-1, 3, self.head_size))
        query, key, value = (part.transpose(1, 2) for part in split.unbind(3))
        causal = self.causal
        if past is not None:
            key, value, mask = _join(past, key, value)
            causal = False
        if self.recompute and torch.is_grad_enabled():
            context = checkpoint(self._attend, query, key, value, mask, causal, use_reentrant=False)
        else:
            context = self._attend(query, key, value, mask, causal)
        assert isinstance(context, Tensor)
        return self.output(context.transpose(1, 2).flatten(2))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(query, key, value, mask, dropout, causal)


class MLP(nn.Module):
    """H to F, GELU, F to H."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"
        self.up = nn.Linear(config.hidden_size, config.mlp_size)
        self.down = nn.Linear(config.mlp_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Maps (B, T, H) to (B, T, H)."""
        return self.down(F.gelu(self.up(hidden), approximate=self.approximate))


class TransformerLayer(nn.Module):
    """Attention and MLP, each with a layer norm and a residual connection, dropout on what is added.

    Args:
        config: sizes.
        causal: see `Attention`.
        pre_norm: norms before each part, the residual stream stays as it is (GPT-2, Megatron's BERT); or after the sum
            (BERT).

    Source: Vaswani et al. 2017, section 3.1 (post); Radford et al. 2019, section 2.3, and Shoeybi et al. 2019, figure 7
    (pre).
    """

    def __init__(self, config: TransformerConfig, causal: bool, pre_norm: bool) -> None:
        super().__init__()
        self.pre_norm, self.dropout = pre_norm, config.dropout
        self.attention_norm = layer_norm(config)
        self.attention = Attention(config, causal)
        self.mlp_norm = layer_norm(config)
        self.mlp = MLP(config)

    def forward(self, hidden: Tensor, mask: Tensor | None = None, past: Past | None = None) -> Tensor:
        """Maps (B, T, H) to (B, T, H)."""
        if self.pre_norm:
            hidden = hidden + self._drop(self.attention(self.attention_norm(hidden), mask, past))
            return hidden + self._drop(self.mlp(self.mlp_norm(hidden)))
        hidden = self.attention_norm(hidden + self._drop(self.attention(hidden, mask, past)))
        return self.mlp_norm(hidden + self._drop(self.mlp(hidden)))

    def _drop(self, change: Tensor) -> Tensor:
        return F.dropout(change, self.dropout, self.training)


def run_layer(layer: nn.Module, hidden: Tensor, mask: Tensor | None, recompute: bool) -> Tensor:
    """Runs a layer without a past; with `recompute` its inside is computed again in the backward pass."""
    if not recompute or not torch.is_grad_enabled():
        return layer(hidden, mask)
    weights: dict[str, Tensor] = dict(layer.named_parameters())
    if all(isinstance(weight, nn.Parameter) for weight in weights.values()):
        output = checkpoint(layer, hidden, mask, use_reentrant=False)
    else:
        # A policy has put cast copies in place of the parameters, for the forward pass only: by the time of the backward
        # pass they are gone from the module, so they are handed over.
        output = checkpoint(lambda x, m: functional_call(layer, weights, (x, m)), hidden, mask, use_reentrant=False)
    assert isinstance(output, Tensor)
    return output


def layer_norm(config: TransformerConfig) -> nn.LayerNorm:
    """A layer norm over H with the model's epsilon."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


def initialise(model: nn.Module, config: TransformerConfig, scaled: bool) -> None:
    """Draws the weights of a new model from torch's generator.

    Weights are normal with `config.init_std`, biases 0, norms the identity, rows of the embedding beyond the vocabulary 0.

    Args:
        model: the module whose parts are drawn, in their order.
        config: its configuration.
        scaled: layers that write to the residual stream start at 1 / sqrt(2 L) of that, so that the stream's variance
            does not grow with depth. Of use with norms before the parts only.

    Source: Radford et al. 2019, section 2.3.
    """
    for name, part in model.named_modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            writes = scaled and name.endswith(("attention.output", "mlp.down"))
            nn.init.normal_(part.weight, std=config.init_std / ((2 * config.num_layers) ** 0.5 if writes else 1.0))
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.Embedding) and part.num_embeddings == config.padded_vocab_size:
            with torch.no_grad():
                part.weight[config.vocab_size :].zero_()


def vocabulary_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, vocab_size: int) -> Tensor:
    """Logits (..., padded V) of hidden states; those beyond the vocabulary are the least number there is."""
    logits = F.linear(hidden, weight, bias)
    if logits.shape[-1] > vocab_size:
        # Not -inf, which would turn into nan where a loss multiplies it by 0.
        logits[..., vocab_size:] = torch.finfo(logits.dtype).min
    return logits


def check_tokens(tokens: Tensor, config: TransformerConfig, before: int = 0) -> None:
    """Refuses tokens (B, T) that the model has no rows for.

    On a GPU the ids are not looked at, which would stall it at every step: data are checked where they are read.

    Raises:
        ValueError: another shape or dtype, more positions than there are, an id outside the vocabulary.
    """
    shape = tuple(tokens.shape)
    if len(shape) != 2 or shape[1] == 0 or tokens.is_floating_point():
        raise ValueError(f"tokens must be integers (batch, time) with time >= 1, not {tokens.dtype} {shape}")
    length = before + shape[1]
    if length > config.max_position_embeddings:
        raise ValueError(
            f"a sequence of {length} tokens is longer than the model's {config.max_position_embeddings} positions: "
            "cut it, or build a model with a larger model.max_position_embeddings"
        )
    if tokens.device.type == "cpu" and tokens.numel():
        least, most = int(tokens.min()), int(tokens.max())
        if least < 0 or most >= config.vocab_size:
            raise ValueError(
                f"token id {least if least < 0 else most} is outside the vocabulary of {config.vocab_size} tokens: "
                "the text was encoded with another tokenizer than the model's"
            )


def _join(past: Past, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Writes this window's keys and values (B, A, T, D) to their places; returns all, and who may see whom."""
    rows = torch.arange(key.shape[0], device=key.device)[:, None]
    past.keys[rows, :, past.positions] = key.transpose(1, 2).to(past.keys.dtype)
    past.values[rows, :, past.positions] = value.transpose(1, 2).to(past.values.dtype)
    places = torch.arange(past.used, device=key.device)
    mask = places[None, None, None, :] <= past.positions[:, None, :, None]
    return past.keys[:, :, : past.used].to(key.dtype), past.values[:, :, : past.used].to(key.dtype), mask
