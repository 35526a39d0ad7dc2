"""Each document is in one split, near-duplicates on one side, reading equals plain concatenation, all by seed."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from bigbatch.data import splits as splits_module
from bigbatch.data.splits import Splits, make_order, split_documents
from bigbatch.data.token_store import TokenStore, TokenStoreWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def build(prefix: Path, documents: list[bytes]) -> TokenStore:
    with TokenStoreWriter(prefix) as writer:
        for document in documents:
            writer.add(document)
    return TokenStore(prefix)


def sentence(seed: int, words: int = 30) -> bytes:
    """A document of words that hardly any other seed shares a run of five with."""
    dice = random.Random(seed)
    return b"\n " + b" ".join(b"w%d" % int(dice.random() * 5000) for _ in range(words)) + b" "


def parts(split: Splits) -> list[set[int]]:
    return [set(order.doc_ids.tolist()) for order in (split.train, split.val, split.test)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return build(tmp_path_factory.mktemp("store") / "s", [sentence(i, 5 + i % 60) for i in range(2000)])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    seed=st.integers(0, 2**40),
    lengths=st.lists(st.integers(1, 60), min_size=12, max_size=80),
    fraction=st.floats(0, 0.15),
    shards=st.integers(1, 9),
)
def test_every_document_once_and_each_part_large_enough(
    tmp_path: Path, seed: int, lengths: list[int], fraction: float, shards: int
) -> None:
    small = build(tmp_path / "s", [sentence(i, words) for i, words in enumerate(lengths)])
    need = max(2, small.num_tokens // 20)
    try:
        split = split_documents(small, seed, fraction, fraction, need, shards)
    except ValueError as error:
        assert "hold out" in str(error)  # a few long documents may leave no room
        return
    ids = np.concatenate([order.doc_ids for order in (split.train, split.val, split.test)])
    assert np.array_equal(np.sort(ids), np.arange(len(lengths)))
    for order in (split.val, split.test):
        assert order.num_tokens >= need and order.num_tokens >= fraction * small.num_tokens
    assert sum(o.num_tokens for o in (split.train, split.val, split.test)) == small.num_tokens


def test_seed_alone_decides(store: TokenStore) -> None:
    def ids(seed: int) -> list[list[int]]:
        split = split_documents(store, seed, min_heldout_bytes=5000, cache=False)
        return [order.doc_ids.tolist() for order in (split.train, split.val, split.test)]

    assert ids(3) == ids(3)
    assert ids(3)[1] != ids(4)[1] and ids(3)[0] != ids(4)[0]
    assert ids(3)[0] != sorted(ids(3)[0])


def test_the_split_is_kept_and_a_damaged_copy_is_made_again(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fresh = parts(split_documents(store, 1, min_heldout_bytes=5000))
    (kept,) = store.prefix.parent.glob("s.split-*.npy")

    def never(*_: object) -> None:
        raise AssertionError("searched again")

    with monkeypatch.context() as patch:
        patch.setattr(splits_module, "heldout_components", never)
        assert parts(split_documents(store, 1, min_heldout_bytes=5000)) == fresh
        with pytest.raises(AssertionError):
            split_documents(store, 1, min_heldout_bytes=5001)
        with pytest.raises(AssertionError):
            split_documents(store, 2, min_heldout_bytes=5000)
    kept.write_bytes(kept.read_bytes()[:90])
    assert parts(split_documents(store, 1, min_heldout_bytes=5000)) == fresh
    assert "unreadable" in caplog.text


def test_a_read_only_folder_is_no_obstacle(store: TokenStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(splits_module.os, "replace", refuse)
    assert len(split_documents(store, 77, min_heldout_bytes=5000).val.doc_ids)
    assert not list(store.prefix.parent.glob("*.partial"))


def variants(text: bytes) -> list[bytes]:
    words = text.split()
    return [
        text,
        text.upper(),
        b"\n " + b" ... ".join(words) + b"!! ",
        b"\n " + b" ".join([*words[:-1], b"other"]) + b" ",
    ]


@pytest.mark.parametrize("seed", range(3))
def test_near_duplicates_stay_on_one_side(tmp_path: Path, seed: int) -> None:
    exact = [variants(sentence(i, 100))[: 2 + i % 2] for i in range(300)]
    edited = [variants(sentence(i, 100))[::3] for i in range(300, 600)]
    families = [*exact, *edited, *([sentence(i, 100)] for i in range(600, 1200))]
    store = build(tmp_path / "s", [document for family in families for document in family])
    family_of = [number for number, family in enumerate(families) for _ in family]
    split = split_documents(store, seed, 0.08, 0.08, 1000)
    sides: list[set[int]] = [set() for _ in families]
    for side, ids in enumerate(parts(split)):
        for document in ids:
            sides[family_of[document]].add(side)
    assert all(len(found) == 1 for found in sides[:300])
    # One word of 100 changed leaves 95 of 97 shingles in common: more than 99 in 100 such pairs are found.
    assert sum(len(found) > 1 for found in sides[300:600]) <= 1
    # Held-out families are whole families, not only documents without any like them.
    assert any(found <= {1, 2} for found in sides[:600])


def test_without_the_rule_families_are_torn_apart(tmp_path: Path) -> None:
    documents = [document for i in range(300) for document in variants(sentence(i, 100))]
    store = build(tmp_path / "s", documents)
    train, val, _ = parts(split_documents(store, 0, 0.15, 0.15, 1000, keep_duplicates_together=False))
    assert {i // 4 for i in train} & {i // 4 for i in val}


def test_a_chain_of_held_out_duplicates_moves_as_a_whole(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is alike to a document that moves to training must move as well."""

    def components(_: TokenStore, heldout: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count = len(heldout)
        groups = np.arange(count)
        groups[groups % 10 == 7] = 7
        groups[groups % 10 == 3] = 3
        return groups, groups == 7

    monkeypatch.setattr(splits_module, "heldout_components", components)
    order = np.random.Generator(np.random.PCG64(5)).permutation(store.num_documents)
    split = split_documents(store, 5, 0.1, 0.1, 100, cache=False)
    train, val, test = parts(split)
    moved = order[7:300:10]
    assert set(moved.tolist()) <= train
    # They are read here and there, not one after the other.
    assert np.flatnonzero(np.isin(split.train.doc_ids, moved)).max() > len(train) // 2
    group = {int(i) for i in order[3:200:10]}
    assert any(group & side for side in (val, test)) and not (group & val and group & test)


def test_too_small_and_too_repetitive_corpora_name_the_remedy(tmp_path: Path) -> None:
    small = build(tmp_path / "s", [sentence(i) for i in range(20)])
    with pytest.raises(ValueError, match=r"too few to hold out 500,000 .*lower --data\.min-heldout-bytes"):
        split_documents(small)
    alike = build(tmp_path / "t", [b"\n all the same words again and again "] * 200)
    with pytest.raises(ValueError, match=r"only 0 bytes have no near-duplicate.*keep_duplicates_together"):
        split_documents(alike, min_heldout_bytes=100)
    assert split_documents(alike, min_heldout_bytes=100, keep_duplicates_together=False).val.num_tokens >= 100
    one = build(tmp_path / "u", [b"\n one document is no corpus to split "])
    with pytest.raises(ValueError, match="cannot hold out"):
        split_documents(one, min_heldout_bytes=1)


def test_shards_are_even_and_start_at_documents(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits_module, "MIN_SHARD_BYTES", 5000)
    order = make_order(store, np.arange(store.num_documents)[::-1], 20)
    assert order.shard_starts[0] == 0 and set(order.shard_starts) <= set(order.starts[:-1])
    sizes = np.diff(np.append(order.shard_starts, order.num_tokens))
    assert len(sizes) == 20 and sizes.min() > 0.9 * sizes.max()
    assert len(make_order(store, np.arange(100), 1000).shard_starts) < 5  # never below the least size
    assert make_order(store, np.arange(1), 7).shard_starts.tolist() == [0]
    split = split_documents(store, 0, 0.1, 0.05, 1, num_shards=20, cache=False)
    assert [len(part.shard_starts) for part in (split.train, split.val, split.test)] == [17, 2, 1]


@settings(max_examples=100)
@given(data=st.data())
def test_reading_equals_the_concatenation(store: TokenStore, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, 1999), min_size=1, max_size=20))
    order = make_order(store, np.array(ids))
    whole = b"".join(store.document(i).tobytes() for i in ids)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    piece = order.read(store, start, stop)
    assert piece.dtype == np.uint8 and piece.tobytes() == whole[start:stop]
    assert order.num_tokens == len(whole) and order.num_documents == len(ids)


def test_reading_outside_the_stream_is_an_error(store: TokenStore) -> None:
    order = make_order(store, np.arange(3))
    for start, stop in ((-1, 2), (2, 1), (0, order.num_tokens + 1)):
        with pytest.raises(ValueError, match="outside the stream"):
            order.read(store, start, stop)
