"""BERT samples: what pairs are made of, what is masked and how often, and that all follows from seed and number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bigbatch.data.bert_samples import IGNORED, BERTSample, BERTSamples, MaskingRule, SpecialTokens, mask_words
from bigbatch.data.token_store import TokenStore, TokenStoreWriter

SPECIAL = SpecialTokens(cls=1, sep=2, mask=3, pad=0)
STOP = 4
V = 4000
CONTINUES = np.arange(V) % 3 == 0  # ids divisible by three go on with the word before them
CONTINUES[:5] = False
RULE = MaskingRule(SPECIAL, V, CONTINUES)


def random_of(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def write(folder: Path, documents: list[list[int]]) -> TokenStore:
    with TokenStoreWriter(folder / "store", np.uint16) as writer:
        for document in documents:
            writer.add(np.array(document, np.uint16))
    return TokenStore(folder / "store")


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    """Ten documents of sentences of 3 to 9 tokens; tokens count on, so that the place of each is known."""
    random, documents, token = random_of(3), [], 10
    for _ in range(10):
        document = []
        for _ in range(int(random.integers(4, 30))):
            length = int(random.integers(2, 9))
            document += [*range(token, token + length), STOP]
            token += length
        documents.append(document)
    assert token < V
    return write(tmp_path, documents)


def samples(store: TokenStore, objective: str = "sop", **more: float) -> BERTSamples:
    more = {"short_probability": 0.0, **more}
    return BERTSamples(store, None, np.array([STOP]), 32, RULE, 7, objective, **more)  # pyright: ignore[reportArgumentType]


def texts(sample: BERTSample) -> list[list[int]]:
    """The texts of a sample with the masked tokens put back."""
    whole = np.where(sample.targets == IGNORED, sample.tokens, sample.targets)[sample.mask].tolist()
    assert whole[0] == SPECIAL.cls and whole[-1] == SPECIAL.sep
    found, current = [], []
    for token in whole[1:]:
        if token == SPECIAL.sep:
            found.append(current)
            current = []
        else:
            current.append(token)
    return found


def document_of(store: TokenStore, token: int) -> int:
    return next(n for n in range(store.num_documents) if token in store.document(n))


def words_only(text: list[int]) -> list[int]:
    return [token for token in text if token != STOP]


def test_an_epoch_reads_every_token_of_every_document(store: TokenStore) -> None:
    found = samples(store, "none")
    spans = np.sort(found.spans, axis=0)
    assert spans[0, 0] == 0 and spans[-1, 1] == store.num_tokens
    assert np.array_equal(spans[1:, 0], spans[:-1, 1])
    inner = spans[:, 0]
    begins = set(store.offsets.tolist())
    assert all(begin in begins or store.tokens[begin - 1] == STOP for begin in inner.tolist())


def test_long_sentences_are_cut(tmp_path: Path) -> None:
    found = samples(write(tmp_path, [[*range(10, 500)], [9]]), "none")
    lengths = np.diff(found.spans, axis=1)
    assert lengths.sum() == 490 and lengths.max() <= 2 * 30


def test_texts_in_order_or_swapped(store: TokenStore) -> None:
    found, labels = samples(store), []
    for index in range(3 * len(found)):
        sample = found.read(index)
        first, second = texts(sample)
        if sample.label:
            first, second = second, first
        both = words_only(first) + words_only(second)
        assert both == sorted(both) and first and second
        assert document_of(store, both[0]) == document_of(store, both[-1])
        labels.append(sample.label)
    assert 0.3 < np.mean(labels) < 0.7


def test_second_texts_from_other_documents(store: TokenStore) -> None:
    found, labels = samples(store, "nsp"), []
    for index in range(3 * len(found)):
        sample = found.read(index)
        first, second = (words_only(text) for text in texts(sample))
        if not first or not second:
            continue
        assert (document_of(store, first[0]) != document_of(store, second[0])) == bool(sample.label)
        labels.append(sample.label)
    assert 0.3 < np.mean(labels) < 0.7


def test_the_second_text_may_come_from_any_other_document(tmp_path: Path) -> None:
    store = write(tmp_path, [[*range(10 * n, 10 * n + 9), STOP] for n in range(1, 7)])
    found = samples(store, "nsp")
    seen = set()
    for index in range(600):
        sample = found.read(index)
        if sample.label:
            seen.add(tuple(document_of(store, words_only(text)[0]) for text in texts(sample)))
    assert len(seen) == 6 * 5


def test_the_layout_of_a_sample(store: TokenStore) -> None:
    for objective, separators in (("sop", 2), ("none", 1)):
        sample = samples(store, objective).read(5)
        assert len(sample.tokens) == len(sample.token_types) == len(sample.mask) == len(sample.targets) == 32
        length = int(sample.mask.sum())
        assert sample.mask[:length].all() and (sample.tokens[length:] == SPECIAL.pad).all()
        whole = np.where(sample.targets == IGNORED, sample.tokens, sample.targets)
        ends = np.flatnonzero(whole == SPECIAL.sep)
        assert len(ends) == separators and ends[-1] == length - 1
        assert (sample.token_types[: ends[0] + 1] == 0).all() and (sample.token_types[length:] == 0).all()
        assert (sample.token_types[ends[0] + 1 : length] == 1).all()
        assert (sample.targets[~sample.mask] == IGNORED).all()


def test_texts_are_cut_where_sentences_end(store: TokenStore) -> None:
    found = samples(store)
    for index in range(len(found)):
        sample = found.read(index)
        first, second = texts(sample)
        span = first + second if not sample.label else second + first
        if len(span) < found.room and span.count(STOP) > 1:  # not cut to fit
            assert (second if sample.label else first)[-1] == STOP


def test_short_samples_are_as_many_as_asked_for(store: TokenStore) -> None:
    lengths = [int(samples(store, "none", short_probability=1.0).read(index).mask.sum()) for index in range(60)]
    assert len(set(lengths)) > 10 and min(lengths) < 12
    usual = [int(samples(store, "none").read(index).mask.sum()) for index in range(60)]
    assert np.mean(usual) > np.mean(lengths) + 5


def test_a_sample_follows_from_seed_and_number_alone(store: TokenStore) -> None:
    def same(a: BERTSample, b: BERTSample) -> bool:
        return all(np.array_equal(x, y) for x, y in zip(a, b))

    found = samples(store)
    first = [found.read(index) for index in range(2 * len(found))]
    again = samples(store)
    assert all(same(again.read(index), first[index]) for index in reversed(range(len(first))))
    other = BERTSamples(store, None, np.array([STOP]), 32, RULE, 8)
    assert not all(same(other.read(index), first[index]) for index in range(10))
    spans = [sorted(min(words_only(a + b), default=0) for a, b in map(texts, part)) for part in (first[:5], first[-5:])]
    assert spans[0] != spans[1]


# -- masking -----------------------------------------------------------------------------------------------------------


def text_of(length: int, seed: int = 0) -> np.ndarray:
    body = random_of(seed).integers(5, V, length)
    return np.concatenate([[SPECIAL.cls], body, [SPECIAL.sep]]).astype(np.int64)


def words_of(tokens: np.ndarray) -> list[list[int]]:
    """Places of each word, one token after the other."""
    words: list[list[int]] = []
    for place in range(1, len(tokens) - 1):
        if CONTINUES[tokens[place]] and words:
            words[-1].append(place)
        else:
            words.append([place])
    return words


def test_15_percent_are_chosen_and_of_them_80_10_10() -> None:
    counts = {"chosen": 0, "mask": 0, "same": 0, "other": 0}
    rule = replace(RULE, max_predictions=10_000)
    for seed in range(20):
        tokens = text_of(2000, seed)
        masked, targets = mask_words(tokens, rule, random_of(100 + seed))
        chosen = targets != IGNORED
        assert np.array_equal(targets[chosen], tokens[chosen]) and np.array_equal(masked[~chosen], tokens[~chosen])
        assert chosen.sum() == 300 and not chosen[[0, -1]].any()
        counts["chosen"] += int(chosen.sum())
        counts["mask"] += int((masked[chosen] == SPECIAL.mask).sum())
        counts["same"] += int((masked[chosen] == tokens[chosen]).sum())
    counts["other"] = counts["chosen"] - counts["mask"] - counts["same"]
    for name, share in (("mask", 0.8), ("same", 0.1), ("other", 0.1)):
        assert counts[name] / counts["chosen"] == pytest.approx(share, abs=0.02)


def test_words_are_masked_whole_or_not_at_all() -> None:
    for seed in range(20):
        tokens = text_of(200, seed)
        targets = mask_words(tokens, RULE, random_of(seed)).targets
        for word in words_of(tokens):
            assert len(set((targets[word] != IGNORED).tolist())) == 1
    loose = replace(RULE, keep_words_whole=False)
    tokens = text_of(400)
    targets = mask_words(tokens, loose, random_of(1)).targets
    assert any(len(set((targets[word] != IGNORED).tolist())) == 2 for word in words_of(tokens))


def test_runs_of_words_are_drawn_in_proportion_to_one_over_their_length() -> None:
    # Every token a word, and so few chosen that runs seldom touch.
    rule = replace(RULE, max_ngram=3, keep_words_whole=False, probability=0.01, max_predictions=1000)
    lengths = []
    for seed in range(60):
        chosen = np.flatnonzero(mask_words(text_of(3000, seed), rule, random_of(seed)).targets != IGNORED)
        lengths += [len(run) for run in np.split(chosen, np.flatnonzero(np.diff(chosen) > 1) + 1)]
    shares = [lengths.count(n) / len(lengths) for n in (1, 2, 3)]
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.05)


def test_the_budget_is_kept() -> None:
    tokens = text_of(500)
    for limit in (1, 7, 60):
        targets = mask_words(tokens, replace(RULE, max_predictions=limit), random_of(2)).targets
        assert (targets != IGNORED).sum() == limit
    short = np.array([SPECIAL.cls, 7, 9, 12, 15, SPECIAL.sep])  # one word of four tokens, and a budget of one
    assert (mask_words(short, RULE, random_of(2)).targets != IGNORED).sum() == 1
    assert (mask_words(np.array([SPECIAL.cls, SPECIAL.sep]), RULE, random_of(2)).targets == IGNORED).all()


# -- input that does not fit -------------------------------------------------------------------------------------------


def test_corpora_that_do_not_suffice_are_named(store: TokenStore, tmp_path: Path) -> None:
    found = samples(store)
    found.require(len(found), max_epochs=1)
    with pytest.raises(
        ValueError, match=r"samples would read the corpus of \d+ spans 5.00 times, more than the 2 epochs"
    ):
        found.require(5 * len(found), max_epochs=2)
    with pytest.raises(ValueError, match="NSP takes second texts from other documents, but the corpus has one"):
        BERTSamples(store, np.array([3]), np.array([STOP]), 32, RULE, 7, "nsp")
    with pytest.raises(ValueError, match="seq_length is 7: two texts and their special tokens need at least 8"):
        BERTSamples(store, None, np.array([STOP]), 7, RULE, 7)
    (tmp_path / "tiny").mkdir()
    with pytest.raises(ValueError, match="the corpus has no document of two tokens"):
        samples(write(tmp_path / "tiny", [[9], [8]]))
    (tmp_path / "beyond").mkdir()
    with pytest.raises(ValueError, match="token id 4000 in document 1 is outside the vocabulary of 4000 tokens"):
        samples(write(tmp_path / "beyond", [[9, 10], [8, 4000]]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"probability": 0.0}, "the masking probability is 0.0: it must lie between 0 and 1"),
        ({"max_ngram": 0}, "max_predictions and max_ngram must be at least 1"),
        ({"vocab_size": 5}, "`continues` tells of 4000 tokens, the vocabulary has 5"),
    ],
)
def test_masking_rules_that_make_no_sense_are_named(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(RULE, **fields)
