"""GPT samples: every token read once an epoch, orders from seed and epoch alone, and an index that is built at once."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from bigbatch.data.gpt_samples import GPTSamples
from bigbatch.data.token_store import TokenStore, TokenStoreWriter


def write(folder: Path, lengths: list[int], dtype: type = np.uint16) -> TokenStore:
    """Documents whose tokens count on from document to document, so that each is unlike any other."""
    with TokenStoreWriter(folder / "store", dtype) as writer:
        start = 0
        for length in lengths:
            writer.add(np.arange(start, start + length, dtype=dtype))
            start += length
    return TokenStore(folder / "store")


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return write(tmp_path, [7, 1, 23, 4, 4, 90, 12, 3, 41, 16])  # 201 tokens


@pytest.mark.parametrize("seq_length", [1, 7, 50, 200])
def test_every_token_is_an_input_once_an_epoch(store: TokenStore, seq_length: int) -> None:
    samples = GPTSamples(store, None, seq_length, seed=5)
    # After seq_length epochs of 201 tokens the samples end where an epoch does.
    inputs = np.concatenate([samples.read(index)[:-1] for index in range(201)])
    assert np.array_equal(np.bincount(inputs, minlength=201), np.full(201, seq_length))
    assert samples.first_sample(seq_length) == 201


def test_samples_are_windows_of_the_permuted_documents(store: TokenStore) -> None:
    samples = GPTSamples(store, None, 13, seed=5)
    stream = []
    for epoch in range(3):
        order = np.random.Generator(np.random.PCG64([5, epoch, 0])).permutation(10)
        stream += [store.document(int(index)) for index in order]
    flat = np.concatenate(stream)
    for epoch in range(2):
        first, last = -(-201 * epoch // 13), -(-201 * (epoch + 1) // 13)
        order = np.random.Generator(np.random.PCG64([5, epoch, 1])).permutation(last - first)
        for number, place in enumerate(order):
            begin = (first + int(place)) * 13
            assert np.array_equal(samples.read(first + number), flat[begin : begin + 14])


def test_orders_change_with_seed_and_epoch_and_with_nothing_else(store: TokenStore) -> None:
    samples = GPTSamples(store, None, 10, seed=1)
    forwards = [samples.read(index).tolist() for index in range(100)]
    again = GPTSamples(store, None, 10, seed=1)
    assert [again.read(index).tolist() for index in reversed(range(100))] == forwards[::-1]
    assert [GPTSamples(store, None, 10, seed=2).read(index).tolist() for index in range(20)] != forwards[:20]
    assert forwards[:20] != forwards[21:41]


def test_ranks_share_the_samples_of_a_batch(store: TokenStore) -> None:
    samples = GPTSamples(store, None, 10, seed=1)
    whole = samples.batch(range(24, 32))
    assert whole.shape == (8, 11) and whole.dtype == np.int64
    parts = [GPTSamples(store, None, 10, seed=1).batch(range(24 + 2 * rank, 26 + 2 * rank)) for rank in range(4)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_validation_is_in_order_and_only_of_its_documents(store: TokenStore) -> None:
    samples = GPTSamples(store, np.array([2, 5]), 20, seed=1, shuffle=False)
    flat = np.concatenate([store.document(2), store.document(5)])
    assert samples.num_tokens == 113
    for index in range(5):
        assert np.array_equal(samples.read(index), flat[20 * index : 20 * index + 21])
    assert np.array_equal(samples.read(5), np.concatenate([flat[100:], flat[:8]]))


def test_orders_of_two_epochs_are_kept_at_most(store: TokenStore) -> None:
    samples = GPTSamples(store, None, 10, seed=1)
    for index in range(400):
        samples.read(index)
    assert len(samples._documents) == len(samples._samples) == 2


def test_the_index_of_100_million_tokens_takes_less_than_two_seconds() -> None:
    class Large:
        """A store of 400,000 documents of 250 tokens, without the tokens."""

        num_documents = 400_000
        offsets = np.arange(400_001, dtype=np.int64) * 250
        tokens = np.zeros(0, np.uint16)

    start = time.process_time()
    samples = GPTSamples(Large(), None, 1024, seed=3)  # pyright: ignore[reportArgumentType]
    order, documents = samples._sample_order(0), samples._document_order(0)
    seconds = time.process_time() - start
    assert samples.num_tokens == 100_000_000 and len(order) == 97_657 and documents.num_documents == 400_000
    assert seconds < 2.0


def test_corpora_that_are_too_small_are_named(store: TokenStore) -> None:
    with pytest.raises(ValueError, match=r"the corpus has 201 tokens, no more than one sample of 201: use more text"):
        GPTSamples(store, None, 201, seed=1)
    samples = GPTSamples(store, None, 10, seed=1)
    samples.require(20, max_epochs=1)
    assert samples.epochs(201) == 10.0
    message = r"50 samples would read the corpus of 201 tokens 2.49 times, more than the 2 epochs allowed"
    with pytest.raises(ValueError, match=message):
        samples.require(50, max_epochs=2)
