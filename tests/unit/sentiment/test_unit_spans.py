"""Changes over words add up to the whole text; means of runs of words against a count by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from bigbatch.data.cleaning import clean_review
from bigbatch.sentiment.unit_spans import occurrence, spans, word_changes
from hypothesis import given
from hypothesis import strategies as st


def test_change_is_from_before_a_word_to_after_its_space() -> None:
    data = clean_review("Not  bad, “Été”!")
    trace = np.arange(len(data), dtype=np.float32) ** 2
    found = word_changes(data, trace)
    assert [change.word for change in found] == ["not", "bad", "été"]
    assert [data[change.start : change.end] for change in found] == [b"Not  ", b"bad, ", "“Été”! ".encode()]
    assert [change.change for change in found] == [6**2 - 1**2, 11**2 - 6**2, (len(data) - 1) ** 2 - 11**2]


@given(st.text(max_size=60), st.integers(0, 2**32 - 1))
def test_changes_add_up(text: str, seed: int) -> None:
    data = clean_review(text)
    trace = np.random.default_rng(seed).normal(size=len(data))
    found = word_changes(data, trace)
    assert sum(change.change for change in found) == pytest.approx(trace[-1] - trace[1] if found else 0.0)
    assert all(before.end == after.start for before, after in pairwise(found))
    assert all(change.word for change in found)


def test_words_that_are_punctuation_stay() -> None:
    data = clean_review("so ... !? x")
    assert [change.word for change in word_changes(data, np.zeros(len(data)))] == ["so", "...", "!?", "x"]
    (word,) = word_changes(b"alone", np.arange(5.0) + 7)  # bytes without a prefix start from zero
    assert word.change == 11.0


def test_means_of_runs_of_words() -> None:
    texts = ["good lamp good lamp", "Good, lamp bad", "bad good"]
    generator, changes, totals = np.random.default_rng(0), [], {1: {}, 2: {}}
    for text in texts:
        data = clean_review(text)
        trace = generator.normal(size=len(data))
        changes.append(word_changes(data, trace))
        words, ends = text.lower().replace(",", "").split(), [i for i, b in enumerate(data) if b == ord(" ")]
        for first in range(len(words)):
            for n in (1, 2):
                if first + n <= len(words):
                    key = " ".join(words[first : first + n])
                    totals[n].setdefault(key, []).append(trace[ends[first + n]] - trace[ends[first]])
    for n in (1, 2):
        for least in (1, 2, 3):
            expected = {key: values for key, values in totals[n].items() if len(values) >= least}
            found = spans(changes, n, least)
            assert {span.words: span.count for span in found} == {key: len(values) for key, values in expected.items()}
            for span in found:
                assert span.mean_change == pytest.approx(np.mean(expected[span.words]))
            assert [span.mean_change for span in found] == sorted((span.mean_change for span in found), reverse=True)
    assert spans(changes, 3, 1)[0].count == 1 and spans(changes, 5, 1) == []


def test_an_occurrence_stands_among_its_neighbours() -> None:
    data = clean_review("I said it was good, and été " + "x" * 50)
    by_word = {change.word: change for change in word_changes(data, np.zeros(len(data)))}
    assert occurrence(data, by_word["i"]).startswith("[I] said it was")
    assert occurrence(data, by_word["good"]) == "I said it was [good,] and été " + "x" * 20
    assert occurrence(data, by_word["x" * 50]) == "I said it was good, and été [" + "x" * 50 + "]"
