"""Whether the tokens of a store are those that a GPT or BERT reads: vocabulary and tokenizer compared before training."""

from __future__ import annotations

import numpy as np

from ..data.token_store import TokenStore
from ..data.tokenizers import ByteTokenizer
from ..models.transformer_config import TransformerConfig

# Ids looked at in one go: a few megabytes.
_CHUNK = 1 << 22


def tokenizer_of(store: TokenStore) -> tuple[str, int] | None:
    """Hash and size of the tokenizer that made a store; None where another program made it and does not say."""
    record = store.metadata.get("tokenizer")
    if record is not None:
        return record["hash"], record["vocab_size"]
    return (ByteTokenizer.hash, ByteTokenizer.vocab_size) if store.dtype.itemsize == 1 else None


def tokenizer_hash(store: TokenStore) -> str:
    """Of the tokenizer that made a store, empty where it is not known."""
    known = tokenizer_of(store)
    return known[0] if known else ""


def bytes_per_token(store: TokenStore) -> float | None:
    """Bytes of text for each token, on average over the whole store; None where they were not counted."""
    if "text_bytes" in store.metadata:
        return store.metadata["text_bytes"] / store.num_tokens
    return 1.0 if tokenizer_hash(store) == ByteTokenizer.hash else None


def check_vocabulary(model: TransformerConfig, store: TokenStore, extra: int = 0) -> None:
    """Refuses a store that the model has not one row of the embedding for each token of.

    Args:
        model: sizes.
        store: the tokens.
        extra: ids beyond those of the store's tokenizer that samples need.

    Raises:
        ValueError: another number of tokens; or, where the store does not say, an id outside the vocabulary, with its
            document.
    """
    known = tokenizer_of(store)
    if known is not None:
        size = known[1] + extra
        if model.vocab_size != size:
            more = f", {extra} special ones included" if extra else ""
            raise ValueError(
                f"the token store {store.prefix} is of {size:,} different tokens{more}, and --model.vocab_size is "
                f"{model.vocab_size:,}: give {size}, or a store made with the model's tokenizer"
            )
        return
    for start in range(0, store.num_tokens, _CHUNK):
        tokens = store.tokens[start : start + _CHUNK]
        bad = np.flatnonzero((tokens < 0) | (tokens >= model.vocab_size - extra))
        if len(bad):
            document = int(np.searchsorted(store.offsets, start + int(bad[0]), "right")) - 1
            raise ValueError(
                f"token id {int(tokens[bad[0]])} in document {document} of the token store {store.prefix} is outside the "
                f"model's vocabulary of {model.vocab_size - extra:,} tokens: the store was made with another tokenizer"
            )
