"""The benchmarks measure what they say: same features and probes by both ways, padding counted, lengths as in SST."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bigbatch.benchmarks import probe as probe_benchmark
from bigbatch.benchmarks.featurize import main, padded, sst_like_texts, steps_computed
from bigbatch.data.cleaning import clean_review
from bigbatch.models.config import MLSTMConfig
from bigbatch.models.mlstm import MLSTM
from bigbatch.sentiment.featurize import featurize


def test_both_ways_give_the_same_features_and_the_reference_pads_more() -> None:
    torch.manual_seed(0)
    model, texts = MLSTM(MLSTMConfig(hidden_size=16)).eval(), sst_like_texts(100)
    np.testing.assert_allclose(
        padded(model, texts, 32), featurize(model, texts, batch_size=32, progress=False), atol=2e-6
    )
    useful = sum(len(clean_review(text)) for text in texts)
    assert steps_computed(model, lambda: padded(model, texts, 32)) == sum(
        max(len(clean_review(text)) for text in texts[i : i + 32]) * len(texts[i : i + 32]) for i in range(0, 100, 32)
    )
    assert (
        useful <= steps_computed(model, lambda: featurize(model, texts, batch_size=32, progress=False)) < 1.2 * useful
    )
    assert "encode" not in vars(model)


def test_made_up_lengths_are_those_of_sst() -> None:
    lengths = [len(clean_review(text)) for text in sst_like_texts(3000)]
    assert np.mean(lengths) == pytest.approx(104, abs=5) and min(lengths) >= 5 and max(lengths) <= 258


def test_it_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--texts", "40", "--hidden-size", "16", "--repeats", "1"]) == 0
    out = capsys.readouterr().out
    assert "GFLOP/s" in out and "featurize" in out and "times as fast" in out


def test_the_probe_benchmark_compares_like_with_like(capsys: pytest.CaptureFixture[str]) -> None:
    plain, ours = (probe_benchmark.measure(side, 200, 12) for side in probe_benchmark.SIDES)
    assert (plain["C"], plain["accuracy"]) == (ours["C"], ours["accuracy"]) and ours["accuracy"] > 0
    assert probe_benchmark.main(["--rows", "100", "--units", "8", "--repeats", "1"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out[2:]] == ["scikit-learn", "SentimentProbe", "ratio"]
