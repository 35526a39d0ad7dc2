"""Samples of GPT: windows of equal length over documents put end to end, shuffled as a function of seed and epoch.

The documents of every epoch are permuted anew and put one after the other, epoch after epoch: one endless stream, cut
into samples of `seq_length` inputs, each with the token after it as its target. So every token is an input exactly once
an epoch, and a sample runs over document bounds (an end-of-document token belongs to the store). Samples of an epoch are
those that start in it; they are read in a permutation of their own. Where sample n is follows from n alone, so a rank
reads its own and nothing has to be stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .splits import DocumentOrder, make_order
from .token_store import TokenStore

# Words that keep the draws of one seed and epoch apart.
_DOCUMENTS, _SAMPLES = 0, 1


class GPTSamples:
    """The samples of a corpus by their number; memory is that of the orders of two epochs.

    Args:
        store: the tokens.
        doc_ids: documents to read, int64; all if None.
        seq_length: targets T of a sample.
        seed: of both permutations.
        shuffle: without it documents and samples stay in order, as for validation.

    Raises:
        ValueError: the documents hold no more than one sample.
    """

    def __init__(
        self, store: TokenStore, doc_ids: np.ndarray | None, seq_length: int, seed: int, shuffle: bool = True
    ) -> None:
        self.store, self.seq_length, self.seed, self.shuffle = store, seq_length, seed, shuffle
        self.doc_ids = np.arange(store.num_documents) if doc_ids is None else np.asarray(doc_ids, np.int64)
        offsets = store.offsets
        self.num_tokens = int((offsets[self.doc_ids + 1] - offsets[self.doc_ids]).sum())
        if self.num_tokens <= seq_length:
            raise ValueError(
                f"the corpus has {self.num_tokens:,} tokens, no more than one sample of {seq_length:,}: use more text or a "
                "shorter seq_length"
            )
        self._documents: dict[int, DocumentOrder] = {}
        self._samples: dict[int, np.ndarray | None] = {}

    def first_sample(self, epoch: int) -> int:
        """Number of the first sample that starts in `epoch`, counted from 0."""
        return -(-epoch * self.num_tokens // self.seq_length)

    def epochs(self, num_samples: int) -> float:
        """How many times `num_samples` samples read the corpus."""
        return num_samples * self.seq_length / self.num_tokens

    def require(self, num_samples: int, max_epochs: float) -> None:
        """Checks that the corpus suffices.

        Raises:
            ValueError: `num_samples` would read it more than `max_epochs` times; says how many.
        """
        require_epochs(self.epochs(num_samples), max_epochs, num_samples, f"{self.num_tokens:,} tokens")

    def read(self, index: int) -> np.ndarray:
        """Tokens (T + 1,) of sample `index`, the number of samples consumed before it: inputs `[:-1]`, targets `[1:]`."""
        epoch = index * self.seq_length // self.num_tokens
        order = self._sample_order(epoch)
        first = self.first_sample(epoch)
        sample = index if order is None else first + int(order[index - first])
        start, pieces = sample * self.seq_length - epoch * self.num_tokens, []
        missing = self.seq_length + 1
        while missing:
            stop = min(start + missing, self.num_tokens)
            pieces.append(self._document_order(epoch).read(self.store, start, stop))
            missing -= stop - start
            start, epoch = 0, epoch + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def batch(self, indices: Sequence[int]) -> np.ndarray:
        """Samples (B, T + 1), int64: a rank asks for those of its own."""
        return np.stack([self.read(index) for index in indices]).astype(np.int64)

    def _document_order(self, epoch: int) -> DocumentOrder:
        if epoch not in self._documents:
            ids = self.doc_ids
            if self.shuffle:
                ids = _generator(self.seed, epoch, _DOCUMENTS).permutation(ids)
            _keep_two(self._documents, epoch)
            self._documents[epoch] = make_order(self.store, ids)
        return self._documents[epoch]

    def _sample_order(self, epoch: int) -> np.ndarray | None:
        if not self.shuffle:
            return None
        if epoch not in self._samples:
            count = self.first_sample(epoch + 1) - self.first_sample(epoch)
            _keep_two(self._samples, epoch)
            self._samples[epoch] = _generator(self.seed, epoch, _SAMPLES).permutation(count)
        return self._samples[epoch]


def require_epochs(epochs: float, most: float, num_samples: int, what: str) -> None:
    """Raises ValueError where `num_samples` samples read a corpus of size `what` more than `most` times."""
    if epochs > most:
        raise ValueError(
            f"{num_samples:,} samples would read the corpus of {what} {epochs:.2f} times, more than the {most:g} epochs "
            "allowed: use more text, fewer samples, or allow more epochs"
        )


def _generator(seed: int, epoch: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, epoch, purpose]))


def _keep_two(cache: dict, epoch: int) -> None:
    """Makes room: an epoch's last sample runs into the next, so two are wanted at once."""
    while len(cache) >= 2:
        cache.pop(min(cache, key=lambda other: -abs(other - epoch)))
