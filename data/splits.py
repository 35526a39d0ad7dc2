"""Which documents train, validate and test, and in which order they are read.

Documents are permuted by seed. Test, then validation take the first documents of the permutation, the rest trains; all
three are cut into shards at document bounds. Near-duplicates (rule in `near_duplicates.py`) stay on one side: a
held-out document with a near-duplicate among the training documents moves to training, together with its own
near-duplicates in the held-out part; near-duplicates within the held-out part all go to test or all to validation.

Everything follows from the store's content, the seed and the sizes asked for. Lanes and windows are `streams.py`.
"""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .near_duplicates import heldout_components
from .token_store import TokenStore

logger = logging.getLogger(__name__)

# Part of the name of a cached split: change it with any rule that decides who is held out.
RULE_VERSION = 1

# Shards are not cut smaller than this to reach `num_shards`: each start costs the model its state.
MIN_SHARD_BYTES = 100_000


@dataclass(frozen=True)
class DocumentOrder:
    """Documents in reading order, seen as one long stream of tokens.

    Attributes:
        doc_ids: Documents of the store in reading order, int64 (n,).
        starts: Where each begins in the stream, and the end of the stream: int64 (n + 1,).
        shard_starts: Stream positions at which shards begin, int64, ascending; the first is 0.
        offsets: Where each document begins in the store's tokens, int64 (n,).
    """

    doc_ids: np.ndarray
    starts: np.ndarray
    shard_starts: np.ndarray
    offsets: np.ndarray

    @property
    def num_tokens(self) -> int:
        """Length of the stream."""
        return int(self.starts[-1])

    @property
    def num_documents(self) -> int:
        return len(self.doc_ids)

    def read(self, store: TokenStore, start: int, stop: int) -> np.ndarray:
        """Tokens [start, stop) of the stream, in the store's dtype; a view where one document holds them all.

        Raises:
            ValueError: the stretch is not within the stream.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise ValueError(f"stretch [{start}, {stop}) is outside the stream of {self.num_tokens} tokens")
        tokens, starts, offsets = store.tokens, self.starts, self.offsets
        index = int(starts.searchsorted(start, "right")) - 1
        pieces = []
        while start < stop:
            end = min(int(starts[index + 1]), stop)
            begin = int(offsets[index]) + start - int(starts[index])
            pieces.append(tokens[begin : begin + end - start])
            start, index = end, index + 1
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else tokens[:0]


@dataclass(frozen=True)
class Splits:
    """The three parts of a corpus; together they hold each document exactly once."""

    train: DocumentOrder
    val: DocumentOrder
    test: DocumentOrder


def make_order(store: TokenStore, doc_ids: np.ndarray, num_shards: int = 1) -> DocumentOrder:
    """Reads `doc_ids` in the given order, cut into about equal shards at document bounds."""
    ids = np.ascontiguousarray(doc_ids, np.int64)
    offsets = store.offsets
    begins = offsets[ids]
    starts = np.zeros(len(ids) + 1, np.int64)
    np.cumsum(offsets[ids + 1] - begins, out=starts[1:])
    total = int(starts[-1])
    num_shards = max(1, min(num_shards, total // MIN_SHARD_BYTES))
    wanted = np.arange(num_shards, dtype=np.int64) * total // num_shards
    shard_starts = np.unique(starts[np.searchsorted(starts, wanted)])
    return DocumentOrder(ids, starts, shard_starts[shard_starts < max(total, 1)], begins)


def split_documents(
    store: TokenStore,
    seed: int = 0,
    val_fraction: float = 0.01,
    test_fraction: float = 0.01,
    min_heldout_bytes: int = 500_000,
    num_shards: int = 1000,
    keep_duplicates_together: bool = True,
    cache: bool = True,
) -> Splits:
    """Splits the documents of a store.

    Args:
        store: The corpus.
        seed: Seed of the permutation.
        val_fraction: Least part of all tokens that validates.
        test_fraction: Least part of all tokens that tests.
        min_heldout_bytes: Least size of each of the two, whatever the fractions say.
        num_shards: Shards of the whole corpus, where they do not fall below 100 kB; each part gets its share of them
            and at least one.
        keep_duplicates_together: Keep near-duplicates on one side.
        cache: Keep the held-out documents in `<prefix>.split-<hash>.npy`: finding near-duplicates takes about a second
            for 45 MB, and neither a resumed run nor another rank need do it again.

    Raises:
        ValueError: the corpus is too small, or too repetitive, for the held-out parts asked for.
    """
    total = store.num_tokens
    num_shards = max(1, min(num_shards, total // MIN_SHARD_BYTES))
    need_test, need_val = (
        max(min_heldout_bytes, int(np.ceil(fraction * total))) for fraction in (test_fraction, val_fraction)
    )
    if 2 * (need_test + need_val) > total:
        raise ValueError(
            f"{store.prefix}: {total:,} bytes are too few to hold out {need_val:,} for validation and {need_test:,} "
            f"for test, which may take half of them at most: use more text or lower --data.min-heldout-bytes (here {total // 4} "
            "is the most)"
        )
    random = np.random.Generator(np.random.PCG64(seed))
    order = random.permutation(store.num_documents)
    if keep_duplicates_together and cache:
        test, val = _cached(store, order, need_test, need_val, seed)
    else:
        test, val = _assign(store, order, need_test, need_val, keep_duplicates_together)
    heldout = np.zeros(store.num_documents, np.bool_)
    heldout[test] = heldout[val] = True
    # Shuffled once more, or documents that moved from the held-out part would all stand at the front.
    train = random.permutation(order[~heldout[order]])
    shards_of = [max(1, round(num_shards * _size(store, ids) / total)) for ids in (train, val, test)]
    return Splits(*(make_order(store, ids, shards) for ids, shards in zip((train, val, test), shards_of)))


def _cached(
    store: TokenStore, order: np.ndarray, need_test: int, need_val: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    key = f"{RULE_VERSION} {store.content_hash} {seed} {need_test} {need_val}"
    path = Path(f"{store.prefix}.split-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npy")
    try:
        ids = np.load(path, allow_pickle=False)
        num_test = int(ids[0])
        return ids[1 : 1 + num_test], ids[1 + num_test :]
    except FileNotFoundError:
        pass
    except (ValueError, OSError, EOFError, IndexError) as error:
        logger.warning("%s: unreadable (%s); finding the held-out documents again", path, error)
    test, val = _assign(store, order, need_test, need_val, True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            np.save(file, np.concatenate([[len(test)], test, val]))
        os.replace(partial, path)
    except OSError as error:
        # A read-only corpus is no obstacle: the next run finds them again.
        logger.info("%s: not kept (%s)", path, error)
        partial.unlink(missing_ok=True)
    return test, val


def _assign(
    store: TokenStore, order: np.ndarray, need_test: int, need_val: int, together: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Test and validation documents; the candidates grow until enough are free of training duplicates."""
    lengths = np.diff(store.offsets)[order]
    ends = np.cumsum(lengths)
    need = need_test + need_val
    limit = int(np.searchsorted(ends, store.num_tokens // 2, "right"))
    slack = 1.0 if not together else 1.1
    while True:
        count = min(int(np.searchsorted(ends, need * slack)) + 2, limit)
        candidates = order[:count]
        if together and count:
            components, moved = heldout_components(store, candidates)
        else:
            components, moved = np.arange(count), np.zeros(count, np.bool_)
        side = _fill(lengths[:count], components, moved, need_test, need_val)
        if side is not None:
            return candidates[side == 0], candidates[side == 1]
        if count >= limit:
            raise ValueError(
                f"{store.prefix}: cannot hold out {need_val:,} bytes for validation and {need_test:,} for test: in the "
                f"half of the corpus that was tried only {int(lengths[:count][~moved].sum()):,} bytes have no "
                "near-duplicate in the rest: lower data.min_heldout_bytes or set data.keep_duplicates_together to false"
            )
        slack *= 1.5


def _fill(
    lengths: np.ndarray, components: np.ndarray, moved: np.ndarray, need_test: int, need_val: int
) -> np.ndarray | None:
    """0 test, 1 validation, 2 training for each candidate, whole components at a time; None if they do not suffice."""
    side = np.full(len(lengths), 2, np.int8)
    free = ~moved
    groups, sizes = np.unique(components[free], return_index=True)[0], np.bincount(components[free], lengths[free])
    first_seen = np.full(len(lengths), len(lengths))
    np.minimum.at(first_seen, components[free], np.flatnonzero(free))
    groups = groups[np.argsort(first_seen[groups], kind="stable")]
    filled = np.cumsum(sizes[groups])
    num_test = int(np.searchsorted(filled, need_test)) + 1
    in_test = filled[num_test - 1] if num_test <= len(groups) else np.inf
    num_heldout = int(np.searchsorted(filled, in_test + need_val)) + 1
    if num_heldout > len(groups):
        return None
    owner = np.full(len(lengths), 2, np.int8)
    owner[groups[num_test:num_heldout]] = 1
    owner[groups[:num_test]] = 0
    side[free] = owner[components[free]]
    return side


def _size(store: TokenStore, ids: np.ndarray) -> int:
    return int((store.offsets[ids + 1] - store.offsets[ids]).sum())
