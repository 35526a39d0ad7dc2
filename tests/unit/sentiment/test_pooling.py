"""Pooled states against the mean and maximum of a whole trace; padding, windows and batches change nothing."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from bigbatch.data.cleaning import clean_review
from bigbatch.models.recurrent import RecurrentState
from bigbatch.sentiment import featurize as module
from bigbatch.sentiment.featurize import cell_trace, featurize

from .test_featurize import TEXTS, build

REDUCE = {"mean": np.mean, "max": np.max}


@pytest.mark.parametrize("pooling", ["mean", "max"])
@pytest.mark.parametrize("state", ["cell", "hidden"])
@pytest.mark.parametrize("transform", ["raw", "tanh"])
def test_pooled_states_are_those_of_the_trace(
    pooling: str, state: str, transform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(num_layers=2)
    traces = [cell_trace(model, text, state=state, transform=transform) for text in TEXTS]  # type: ignore[arg-type]
    expected = np.stack([REDUCE[pooling](trace.astype(np.float64), axis=0) for trace in traces])
    monkeypatch.setattr(module, "MAX_WINDOW", 50)
    for batch_size in (1, 4, 100):
        features = featurize(
            model, TEXTS, state=state, transform=transform, pooling=pooling, batch_size=batch_size, progress=False
        )  # type: ignore[call-overload]
        assert features.dtype == np.float32
        np.testing.assert_allclose(features, expected, atol=2e-6)


def test_the_window_and_the_batch_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(torch.float64)
    found = []
    for window, batch_size in ((4, 2), (256, 100)):
        monkeypatch.setattr(module, "MAX_WINDOW", window)
        found.append(featurize(model, TEXTS, pooling="mean", batch_size=batch_size, progress=False))
    np.testing.assert_allclose(found[0], found[1], rtol=2**-23)


def test_pooling_has_its_own_cache(tmp_path: Path) -> None:
    model = build()
    found = {
        pooling: featurize(model, TEXTS, pooling=pooling, cache_dir=tmp_path, progress=False)  # type: ignore[arg-type]
        for pooling in ("last", "mean", "max", "mean")
    }
    assert len(list(tmp_path.iterdir())) == 3
    assert not np.allclose(found["last"], found["mean"]) and np.all(found["max"] >= found["mean"])


def test_only_the_last_layer_is_pooled() -> None:
    with pytest.raises(ValueError, match="pooling mean reads the last layer, 1; layer is 0"):
        featurize(build(num_layers=2), TEXTS, pooling="mean", layer=0, progress=False)
    with pytest.raises(ValueError, match="pooling is 'sum'; choose one of last, mean, max"):
        featurize(build(), TEXTS, pooling="sum", progress=False)  # type: ignore[arg-type]


class RunningSum(torch.nn.Module):
    """A model whose cell is the sum of all bytes so far over 2**40, and fast: what it gives is known in closed form."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(hidden_size=2, num_layers=1, vocab_size=256)
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.widths: list[int] = []

    def frozen(self, int8: bool = False) -> nullcontext:
        return nullcontext()

    def encode(self, tokens, state=None, lengths=None, return_cells=False):
        self.widths.append(tokens.shape[1])
        before = torch.zeros(len(tokens), 2, dtype=torch.float64) if state is None else state.cell[0]
        cells = before[:, None] + torch.cumsum(tokens.double(), 1)[:, :, None] / 2**40
        last = torch.full((len(tokens),), tokens.shape[1]) if lengths is None else lengths
        ends = torch.where((last > 0)[:, None], cells[torch.arange(len(tokens)), last.clamp(min=1) - 1], before)
        final = RecurrentState(ends[None], ends[None])
        return (cells, final, cells) if return_cells else (cells, final)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_ten_million_bytes_in_one_row(pooling: str) -> None:
    model, text = RunningSum(), "wxyz" * 2_500_000
    features = featurize(model, ["short", text, ""], pooling=pooling, progress=False)  # type: ignore[arg-type]
    assert max(model.widths) <= module.MAX_WINDOW and sum(model.widths) >= 10_000_003
    sums = np.cumsum(np.frombuffer(clean_review(text), dtype=np.uint8), dtype=np.float64) / 2**40
    np.testing.assert_allclose(features[1], sums[-1] if pooling == "last" else sums.mean(), rtol=1e-6)
    short = np.cumsum(list(b"\n short ")) / 2**40
    np.testing.assert_allclose(features[0], short[-1] if pooling == "last" else short.mean(), rtol=1e-6)


LONG = """
import resource, torch
torch.set_num_threads(1)
from bigbatch.models.config import MLSTMConfig
from bigbatch.models.mlstm import MLSTM
from bigbatch.sentiment.featurize import featurize
model = MLSTM(MLSTMConfig(hidden_size=4, embedding_size=2)).eval()
def peak(megabytes):
    text = "word " * (megabytes * 200_000)
    assert featurize(model, [text], pooling="mean", progress=False).shape == (1, 4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(-peak(1) + peak(10))
"""


@pytest.mark.slow
def test_memory_is_that_of_the_text() -> None:
    # The text, its cleaned bytes and what cleaning holds for a moment: a few bytes for each byte, and not H floats.
    out = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, check=True).stdout
    assert float(out) < 60
