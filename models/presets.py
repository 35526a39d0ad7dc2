"""The published sizes of GPT and BERT by name, as configurations; nothing is downloaded and no weights are meant."""

from __future__ import annotations

import difflib
from dataclasses import replace

from .transformer_config import BERTConfig, GPTConfig, TransformerConfig


def _gpt(layers: int, hidden: int, heads: int, **more: int | float) -> GPTConfig:
    fields = {"num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, **more}
    return GPTConfig(**fields)  # pyright: ignore[reportArgumentType]


def _megatron_bert(layers: int, hidden: int, heads: int) -> BERTConfig:
    return BERTConfig(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        vocab_multiple=1024,
        activation="gelu_tanh",
        layer_norm_eps=1e-5,
        layer_norm="pre",
        sentence_head="sop",
    )


# Sources: Radford et al. 2019, table 2 (with the heads of the released models); Shoeybi et al. 2019 (arXiv 1909.08053),
# table 1 (32 heads) and table 2 (24 heads) for Megatron, table 4 for its BERT, with vocabularies padded to a multiple of
# 1,024 (128 for each of 8 ranks); Smith et al. 2022 (arXiv 2201.11990) for MT-NLG; Devlin et al. 2018 for BERT.
PRESETS: dict[str, TransformerConfig] = {
    "gpt2-124m": _gpt(12, 768, 12),
    "gpt2-355m": _gpt(24, 1024, 16),
    "gpt2-774m": _gpt(36, 1280, 20),
    "gpt2-1.5b": _gpt(48, 1600, 25),
    "megatron-1.2b": _gpt(40, 1536, 16, vocab_multiple=1024),
    "megatron-2.5b": _gpt(54, 1920, 20, vocab_multiple=1024),
    "megatron-4.2b": _gpt(64, 2304, 24, vocab_multiple=1024),
    "megatron-8.3b-24-heads": _gpt(72, 3072, 24, vocab_multiple=1024),
    "megatron-8.3b-32-heads": _gpt(72, 3072, 32, vocab_multiple=1024),
    "mt-nlg-530b": _gpt(105, 20480, 128, vocab_multiple=1024, max_position_embeddings=2048, init_std=4e-3),
    "bert-base": BERTConfig(),
    "bert-large": BERTConfig(num_layers=24, hidden_size=1024, num_attention_heads=16),
    "megatron-bert-336m": _megatron_bert(24, 1024, 16),
    "megatron-bert-1.3b": _megatron_bert(24, 2048, 32),
    "megatron-bert-3.9b": _megatron_bert(48, 2560, 40),
}


def preset(name: str) -> TransformerConfig:
    """A copy of a published size, by its name in `PRESETS`.

    Raises:
        ValueError: no such name; says the nearest, or all.
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.6) or list(PRESETS)
        raise ValueError(f"no model is called {name!r}: choose one of {', '.join(near)}")
    return replace(PRESETS[name])
