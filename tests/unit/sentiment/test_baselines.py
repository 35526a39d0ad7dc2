"""The two baselines on texts whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from bigbatch.sentiment.baselines import TfidfBaseline, majority_class


def make_reviews(n: int, seed: int) -> tuple[list[str], np.ndarray]:
    generator = np.random.default_rng(seed)
    y = generator.integers(2, size=n)
    nouns = ["kettle", "film", "cable", "novel"]
    opinions = [["is not good", "isn't nice"], ["is good", "is nice"]]
    return [
        f"The {nouns[generator.integers(4)]} {opinions[label][generator.integers(2)]} &amp; cheap" for label in y
    ], y


def test_majority_class() -> None:
    assert majority_class(np.array([1, 0, 1])) == 1
    assert majority_class(np.array([5, 3, 3, 5])) == 3


def test_tfidf_learns_word_pairs() -> None:
    texts, y = make_reviews(200, 0)
    val_texts, y_val = make_reviews(50, 1)
    baseline = TfidfBaseline.fit(texts, y, val_texts, y_val)
    test_texts, y_test = make_reviews(100, 2)
    assert np.mean(baseline.predict(test_texts) == y_test) == 1.0
    vocabulary = baseline.vectorizer.vocabulary_
    assert "not good" in vocabulary and "isn't" in vocabulary
    assert "amp" not in vocabulary  # cleaned as the byte model's texts are
    assert baseline.num_features == len(vocabulary)


def test_c_is_chosen_on_validation() -> None:
    generator = np.random.default_rng(0)
    words = [f"w{i}" for i in range(200)]
    y = generator.integers(2, size=120)
    texts = [" ".join(["good" if label else "bad", *generator.choice(words, 8)]) for label in y]
    noise = y.copy()
    noise[:40] = 1 - noise[:40]
    scores = {}
    for C in (2**-2, 2**8):
        scores[C] = TfidfBaseline.fit(texts[:80], noise[:80], texts[80:], y[80:], Cs=(C,)).validation_accuracy
    best = TfidfBaseline.fit(texts[:80], noise[:80], texts[80:], y[80:], Cs=tuple(scores))
    assert scores[2**-2] != scores[2**8]
    assert max(scores, key=lambda C: scores[C]) == best.C


def test_three_classes() -> None:
    texts, y = ["good film", "bad film", "odd film"] * 10, np.tile([0, 1, 2], 10)
    baseline = TfidfBaseline.fit(texts, y, texts, y)
    assert baseline.predict(["a good one", "an odd one"]).tolist() == [0, 2]


def test_bad_input_is_one_clear_line() -> None:
    with pytest.raises(ValueError, match="one class only"):
        TfidfBaseline.fit(["a b", "c d"], np.array([1, 1]), ["a"], np.array([1]))
    with pytest.raises(ValueError, match="hold no words"):
        TfidfBaseline.fit(["!", "?"], np.array([0, 1]), ["!", "?"], np.array([0, 1]))
