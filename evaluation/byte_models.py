"""Byte-level yardsticks for a language model's bits per byte: gzip and an interpolated Witten-Bell model.

Both are scored on the same held-out bytes as the neural model. Documents are not separated: the models see the plain
byte stream, so the first bytes of a document are predicted from the last bytes of the one before it.
Which bytes are held out is the caller's business.
"""

from __future__ import annotations

import gzip

import numpy as np

VOCAB_SIZE = 256
MAX_ORDER = 7  # a context and its next byte share one uint64 key


def as_bytes_array(data: bytes | bytearray | memoryview | np.ndarray) -> np.ndarray:
    """The bytes as a one-dimensional uint8 array (a view where possible).

    Raises:
        ValueError: An array of another type or shape, which would be cut or wrapped silently.
    """
    if isinstance(data, np.ndarray):
        if data.dtype != np.uint8 or data.ndim != 1:
            raise ValueError(f"bytes are expected as a 1-D uint8 array, not {data.dtype} of shape {data.shape}")
        return data
    return np.frombuffer(data, dtype=np.uint8)


def gzip_bpc(data: bytes | np.ndarray, level: int = 9) -> float:
    """Bits per byte of `gzip -9` on the held-out text compressed alone, header included.

    gzip looks back 32 kB at most, so handing it the training text as a prefix would change nothing but the first 32 kB.

    Args:
        data: Held-out bytes, at least one.
        level: gzip's compression level, 1 to 9.

    Raises:
        ValueError: No bytes.
    """
    raw = as_bytes_array(data)
    if raw.size == 0:
        raise ValueError("gzip_bpc: the held-out text has no bytes")
    return 8.0 * len(gzip.compress(raw.tobytes(), compresslevel=level, mtime=0)) / raw.size


def _gram_keys(data: np.ndarray, length: int) -> np.ndarray:
    """Keys of all windows of `length` bytes, oldest byte most significant, shape (n - length + 1,), uint64."""
    count = max(len(data) - length + 1, 0)
    keys = np.zeros(count, dtype=np.uint64)
    for offset in range(length):
        keys <<= np.uint64(8)
        keys |= data[offset : offset + count]
    return keys


class _Order:
    """Counts of one context length: N(c, x), N(c) and T(c), looked up by binary search in sorted keys."""

    def __init__(self, data: np.ndarray, context_length: int) -> None:
        keys = _gram_keys(data, context_length + 1)
        keys.sort()
        starts = np.flatnonzero(np.concatenate(([len(keys) > 0], keys[1:] != keys[:-1])))
        self.gram_keys = keys[starts]
        self.gram_counts = np.diff(np.append(starts, len(keys)))
        del keys
        # The next byte is the least significant one, so the grams of a context lie side by side.
        contexts = self.gram_keys >> np.uint64(8)
        first = np.flatnonzero(np.concatenate(([len(contexts) > 0], contexts[1:] != contexts[:-1])))
        self.context_keys = contexts[first]
        self.context_types = np.diff(np.append(first, len(contexts)))
        cumulative = np.concatenate(([0], np.cumsum(self.gram_counts)))
        self.context_counts = cumulative[np.append(first[1:], len(contexts))] - cumulative[first]

    @staticmethod
    def _find(sorted_keys: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        index = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
        return index, sorted_keys[index] == keys

    def interpolate(self, grams: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """P(x | c) = (N(c,x) + T(c) * lower) / (N(c) + T(c)); `lower` unchanged where the context is unseen."""
        if not len(self.gram_keys):
            return lower
        context, seen = self._find(self.context_keys, grams >> np.uint64(8))
        gram, hit = self._find(self.gram_keys, grams)
        count = np.where(hit, self.gram_counts[gram], 0)
        types = self.context_types[context]
        return np.where(seen, (count + types * lower) / (self.context_counts[context] + types), lower)


class WittenBell:
    """Interpolated Witten-Bell model over bytes.

    With c_k the last k bytes, N counts in the training stream and T(c) the number of distinct bytes seen after c:

        P_k(x | c_k) = (N(c_k, x) + T(c_k) * P_{k-1}(x | c_{k-1})) / (N(c_k) + T(c_k))

    down to P_{-1} = 1/256, so no byte has probability zero. A context never seen leaves P_k = P_{k-1}. `order` is the
    number of context bytes (order 5 conditions on five bytes, as PPM counts it). All arithmetic is fp64.

    Args:
        order: Context bytes, 0 to 7.
        max_train_bytes: Train on the first so many bytes only; None for all.

    Raises:
        ValueError: An order out of range.

    Source:
        Witten and Bell 1991, method C; the interpolated form as in Chen and Goodman 1998, section 2.4.
    """

    def __init__(self, order: int = 5, max_train_bytes: int | None = None) -> None:
        if not 0 <= order <= MAX_ORDER:
            raise ValueError(f"WittenBell: order is {order}; 0 to {MAX_ORDER} context bytes are supported")
        if max_train_bytes is not None and max_train_bytes < 1:
            raise ValueError(f"WittenBell: max_train_bytes is {max_train_bytes}; it must be at least 1")
        self.order = order
        self.max_train_bytes = max_train_bytes
        self.num_train_bytes_ = 0
        self._orders: list[_Order] = []

    def fit(self, data: bytes | np.ndarray) -> WittenBell:
        """Counts the training bytes. Peak memory is about 25 bytes for each of them.

        Raises:
            ValueError: No bytes.
        """
        stream = as_bytes_array(data)[: self.max_train_bytes]
        if stream.size == 0:
            raise ValueError("WittenBell.fit: the training text has no bytes")
        self.num_train_bytes_ = int(stream.size)
        self._orders = [_Order(stream, length) for length in range(self.order + 1)]
        return self

    def probabilities(self, data: bytes | np.ndarray) -> np.ndarray:
        """Probability of each byte given those before it in `data`, shape (n,), fp64.

        The first bytes have shorter contexts: nothing of the training stream precedes them.
        """
        assert self._orders, "fit first"
        stream = as_bytes_array(data)
        probability = np.full(stream.size, 1.0 / VOCAB_SIZE)
        for length, order in enumerate(self._orders):
            if stream.size > length:
                grams = _gram_keys(stream, length + 1)
                probability[length:] = order.interpolate(grams, probability[length:])
        return probability

    def distribution(self, context: bytes) -> np.ndarray:
        """P(x | context) for all 256 bytes x, shape (256,), fp64."""
        assert self._orders, "fit first"
        following = np.arange(VOCAB_SIZE, dtype=np.uint64)
        probability = np.full(VOCAB_SIZE, 1.0 / VOCAB_SIZE)
        for length, order in enumerate(self._orders[: len(context) + 1]):
            key = int.from_bytes(context[len(context) - length :], "big") << 8
            probability = order.interpolate(np.uint64(key) | following, probability)
        return probability

    def bits_per_byte(self, data: bytes | np.ndarray) -> float:
        """Mean of -log2 P over all bytes of the held-out stream, the first included.

        Raises:
            ValueError: No bytes.
        """
        stream = as_bytes_array(data)
        if stream.size == 0:
            raise ValueError("WittenBell.bits_per_byte: the held-out text has no bytes")
        return float(-np.log2(self.probabilities(stream)).mean())
