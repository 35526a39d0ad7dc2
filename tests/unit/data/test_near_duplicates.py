"""The fast, vectorised keys against the rule written out with sets and regular expressions."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
from bigbatch.data import near_duplicates
from bigbatch.data.near_duplicates import SHINGLE_WORDS, document_keys, heldout_components
from bigbatch.data.token_store import TokenStore, TokenStoreWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def build(prefix: Path, documents: list[bytes], dtype: type = np.uint8) -> TokenStore:
    with TokenStoreWriter(prefix, dtype) as writer:
        for document in documents:
            writer.add(document)
    return TokenStore(prefix)


def keys_of(store: TokenStore) -> list[set[int]]:
    found: list[set[int]] = [set() for _ in range(store.num_documents)]
    for documents, keys in document_keys(store, np.ones(store.num_documents, np.bool_)):
        for document, key in zip(documents.tolist(), keys.tolist()):
            found[document].add(key)
    return found


def shingles(document: bytes) -> frozenset[tuple[bytes, ...]]:
    words = re.findall(rb"[a-z0-9\x80-\xff]+", document.lower())
    last = max(1, len(words) - SHINGLE_WORDS + 1)
    return frozenset(tuple(words[i : i + SHINGLE_WORDS]) for i in range(last))


few_words = st.lists(
    st.sampled_from([b"a", b"B", b"b", b"cc", b"dd.", b"-", b"\xc3\xa9", b"A9", b"longlonglonglong1"]), max_size=12
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(documents=st.lists(few_words.map(b" ".join), min_size=1, max_size=12).filter(any), stretch=st.integers(1, 200))
def test_equal_shingle_sets_are_duplicates_and_disjoint_ones_are_not(
    tmp_path: Path, documents: list[bytes], stretch: int
) -> None:
    store = build(tmp_path / "s", documents)
    keys = keys_of(store)
    sets = [shingles(document) for document in documents]
    for i in range(len(documents)):
        assert keys[i]
        for j in range(i):
            if sets[i] == sets[j]:
                assert keys[i] == keys[j], (documents[i], documents[j])
            elif not sets[i] & sets[j]:
                assert not keys[i] & keys[j], (documents[i], documents[j])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near_duplicates, "_STRETCH_TOKENS", stretch)
        assert keys_of(store) == keys


def test_words_do_not_run_on_into_the_next_document(tmp_path: Path) -> None:
    store = build(tmp_path / "s", [b"one two thr", b"ee four", b"one two thr", b"three four"])
    keys = keys_of(store)
    assert keys[0] == keys[2] and not keys[1] & keys[3] and not keys[0] & keys[3]


@pytest.mark.parametrize(("similarity", "low", "high"), [(0.3, 0.0, 0.06), (0.8, 0.82, 0.95), (0.9, 0.97, 1.0)])
def test_chance_of_being_found_is_as_documented(tmp_path: Path, similarity: float, low: float, high: float) -> None:
    dice = random.Random(1)
    documents = []
    pairs, size = 300, 120
    for pair in range(pairs):
        words = [b"p%dw%d" % (pair, i) for i in range(size)]
        other = list(words)
        while True:
            first, second = shingles(b" ".join(words)), shingles(b" ".join(other))
            if len(first & second) / len(first | second) <= similarity:
                break
            other[int(dice.random() * size)] = b"x%d" % int(dice.random() * 10**9)
        documents += [b" ".join(words), b" ".join(other)]
    keys = keys_of(build(tmp_path / "s", documents))
    found = sum(bool(keys[2 * i] & keys[2 * i + 1]) for i in range(pairs)) / pairs
    assert low <= found <= high
    assert not any(keys[0] & keys[i] for i in range(2, 2 * pairs))


def test_components_and_their_reach_into_the_rest(tmp_path: Path) -> None:
    texts = [f"text number {i} with words {i * 3} and {i * 5} and also {i * 7} of its own".encode() for i in range(6)]
    #                 0         1         2          3                4                5         6         7
    documents = [texts[0], texts[1], texts[0], texts[2].upper(), texts[3], texts[2] + b"!", texts[4], texts[3]]
    heldout = np.array([4, 0, 2, 3, 6])
    components, moved = heldout_components(build(tmp_path / "s", documents), heldout)
    assert components.tolist() == [0, 1, 1, 3, 4]
    assert moved.tolist() == [True, False, False, True, False]


def test_subword_tokens_are_words(tmp_path: Path) -> None:
    long = list(range(300, 340))
    documents = [long, [7, *long[1:]], list(range(800, 840)), long[:20], [5, 5, 6]]
    store = build(tmp_path / "s", [np.array(document, "<u2").tobytes() for document in documents], np.uint16)
    keys = keys_of(store)
    assert keys[0] & keys[1]  # one token of forty differs
    assert not keys[0] & keys[2] and not keys[4] & (keys[0] | keys[2])


def test_real_reviews_repeat_as_counted_by_hand(corpora: Path, tmp_path: Path) -> None:
    """Exact repeats in the DVD reviews (after case and punctuation) are all found."""
    from bigbatch.data.config import DataConfig
    from bigbatch.data.prepare import prepare_store

    path = corpora / "amazon" / "multidomain_dvd.csv.gz"
    store = prepare_store(DataConfig(paths=[str(path)]), tmp_path / "s", progress=False)
    keys = keys_of(store)
    first: dict[frozenset[tuple[bytes, ...]], int] = {}
    repeats = 0
    for number in range(store.num_documents):
        shingle_set = shingles(store.document(number).tobytes())
        if shingle_set in first:
            repeats += 1
            assert keys[number] & keys[first[shingle_set]]
        first.setdefault(shingle_set, number)
    assert repeats >= 156
