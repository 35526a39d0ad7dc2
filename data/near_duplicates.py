"""Finds near-duplicate documents between a held-out part and the rest of a corpus, in one pass and bounded memory.

Rule: letters are lower-cased and everything but letters, digits and non-ASCII bytes separates words. A document's
shingles are its runs of 5 words (all its words, if fewer). The 24 smallest hashes of the distinct shingles are its
sketch, and each run of 6 neighbours in the sketch is one key (the whole sketch, if smaller). Two documents with a key
in common are near-duplicates. Documents that differ only in case, punctuation or spacing always are; others with a
chance that grows with the Jaccard similarity of their shingles: 0.2 -> 0.001, 0.5 -> 0.17, 0.8 -> 0.89, 0.9 -> 0.99
(simulated). In a store of subword tokens every token is a word.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .token_store import TokenStore

SHINGLE_WORDS = 5
SKETCH_SIZE = 24
KEY_RUN = 6

_STRETCH_TOKENS = 1 << 18
_MIX = np.uint64(0x9E3779B97F4A7C15)
_MIX_2 = np.uint64(0xD6E8FEB86659FD93)
_HASH_BITS = np.uint64(40)
_BYTE_MASKS = np.array([(1 << 8 * length) - 1 for length in range(9)], np.uint64)


def _word_table() -> np.ndarray:
    table = np.zeros(256, np.uint8)
    for byte in range(1, 256):
        if byte >= 128 or chr(byte).isalnum():
            table[byte] = ord(chr(byte).lower()) if byte < 128 else byte
    return table


# Each byte as a part of a word, lower-cased; 0 for what separates words.
_WORD_BYTE = _word_table()


def heldout_components(store: TokenStore, heldout: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Groups the held-out documents by near-duplication and finds the groups that reach into the rest.

    Args:
        store: A store of bytes, or of subword tokens.
        heldout: Document ids, int64 (n,).

    Returns:
        components: For each held-out document the position of the first member of its group, int64 (n,).
        moved: True where the group has a near-duplicate outside `heldout`, bool (n,).
    """
    position = np.full(store.num_documents, -1, np.int64)
    position[heldout] = np.arange(len(heldout))
    keys, owners = [], []
    for documents, found in document_keys(store, position >= 0):
        keys.append(found)
        owners.append(position[documents])
    key, owner = np.concatenate(keys), np.concatenate(owners)
    by_key = np.argsort(key, kind="stable")
    key, owner = key[by_key], owner[by_key]
    same = np.flatnonzero(key[1:] == key[:-1])
    components = _connect(len(heldout), owner[same], owner[same + 1])
    distinct = _distinct(key)
    seen = np.zeros(len(distinct), np.bool_)
    for _, found in document_keys(store, position < 0):
        at = np.minimum(np.searchsorted(distinct, found), len(distinct) - 1)
        seen[at[distinct[at] == found]] = True
    reaches = np.zeros(len(heldout), np.bool_)
    reaches[components[owner[seen[np.searchsorted(distinct, key)]]]] = True
    return components, reaches[components]


def _connect(count: int, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Connected components; each node gets the smallest member of its component."""
    label = np.arange(count)
    while True:
        before = label.copy()
        low = np.minimum(label[left], label[right])
        np.minimum.at(label, left, low)
        np.minimum.at(label, right, low)
        label = label[label]
        if np.array_equal(label, before):
            return label


def document_keys(store: TokenStore, wanted: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Keys of the wanted documents, a stretch of the store at a time.

    Args:
        store: A store of bytes.
        wanted: Which documents, bool (num_documents,).

    Yields:
        Document ids int64 (k,) and keys uint64 (k,); a document occurs once for each of its keys.
    """
    offsets = store.offsets
    first = 0
    while first < store.num_documents:
        last = int(np.searchsorted(offsets, offsets[first] + _STRETCH_TOKENS, "right")) - 1
        last = min(max(last, first + 1), store.num_documents)
        ids = first + np.flatnonzero(wanted[first:last])
        if len(ids):
            if len(ids) == last - first:
                text, bounds = store.tokens[offsets[first] : offsets[last]], offsets[first : last + 1] - offsets[first]
            else:
                text = np.concatenate([store.tokens[offsets[i] : offsets[i + 1]] for i in ids])
                bounds = np.concatenate(([0], np.cumsum(offsets[ids + 1] - offsets[ids])))
            local, keys = _stretch_keys(text, bounds)
            yield ids[local], keys
        first = last


def _stretch_keys(text: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    words, words_before = _word_hashes(text, bounds)
    document, shingles = _shingles(words, words_before)
    # One sort orders the shingles of every document: 24 bits of document above 40 bits of hash.
    order = _distinct((document.astype(np.uint64) << _HASH_BITS) | (shingles >> np.uint64(24)))
    document = (order >> _HASH_BITS).astype(np.int64)
    begin = np.searchsorted(document, np.arange(len(bounds) - 1))
    rank = np.arange(len(order)) - begin[document]
    kept = rank < SKETCH_SIZE
    order, document, rank = order[kept], document[kept], rank[kept]
    size = np.bincount(document, minlength=len(bounds) - 1)
    starts_key = (rank + KEY_RUN <= size[document]) | (rank == 0)
    at = np.flatnonzero(starts_key)
    keys = np.zeros(len(at), np.uint64)
    padded = np.append(order & np.uint64((1 << 40) - 1), np.zeros(KEY_RUN, np.uint64))
    for step in range(KEY_RUN):
        inside = rank[at] + step < size[document[at]]
        keys = _mixed(keys + np.where(inside, padded[at + step] + np.uint64(1), np.uint64(0)))
    # Documents without any word have all one key.
    wordless = np.flatnonzero(size == 0)
    return np.append(document[at], wordless), np.append(keys, np.ones(len(wordless), np.uint64))


def _word_hashes(text: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hash of every word (its first 16 bytes and its length), and for each document bound the words before it."""
    if text.dtype.itemsize > 1:
        return _mixed((text.astype(np.uint64) + np.uint64(1)) * _MIX), bounds
    lowered = np.zeros(len(text) + 16, np.uint8)
    np.take(_WORD_BYTE, text, out=lowered[: len(text)])
    is_word = lowered[: len(text) + 1] != 0
    begins, ends = is_word.copy(), is_word[:-1] & ~is_word[1:]
    begins[1:] &= ~is_word[:-1]
    # A word never runs on into the next document.
    begins[bounds] = is_word[bounds]
    last = bounds[1:][bounds[1:] > 0] - 1
    ends[last] = is_word[last]
    starts = np.flatnonzero(begins)
    lengths = np.flatnonzero(ends) + 1 - starts
    # Eight bytes from every position as one number.
    eights = np.ndarray((len(text) + 9,), "<u8", lowered, strides=(1,))
    head = eights[starts] & _BYTE_MASKS[np.minimum(lengths, 8)]
    tail = eights[starts + np.minimum(lengths, 8)] & _BYTE_MASKS[np.clip(lengths - 8, 0, 8)]
    hashes = _mixed(_mixed(head + lengths.astype(np.uint64) * _MIX) + tail)
    return hashes, np.searchsorted(starts, bounds)


def _shingles(words: np.ndarray, words_before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    counts = np.diff(words_before)
    document = np.repeat(np.arange(len(counts)), counts)
    left = words_before[1:][document] - np.arange(len(words))  # words from this one to the end of its document
    padded = np.append(words, np.zeros(SHINGLE_WORDS, np.uint64))
    shingles = np.zeros(len(words), np.uint64)
    for step in range(SHINGLE_WORDS):
        inside = np.where(left > step, padded[step : step + len(words)], np.uint64(0))
        shingles = (shingles + inside) * _MIX
    whole = (left >= SHINGLE_WORDS) | (np.arange(len(words)) == words_before[:-1][document])
    return document[whole], _mixed(shingles[whole])


def _distinct(values: np.ndarray) -> np.ndarray:
    """Sorted distinct values; np.unique is several times slower, since it hashes."""
    values = np.sort(values)
    return values[np.append(True, values[1:] != values[:-1])] if len(values) else values


def _mixed(values: np.ndarray) -> np.ndarray:
    """A bijection of 64 bits in which every input bit moves every output bit."""
    values = (values ^ (values >> np.uint64(32))) * _MIX_2
    values = (values ^ (values >> np.uint64(32))) * _MIX
    return values ^ (values >> np.uint64(29))
