"""Featurising against one forward pass per text; batches, windows and the cache change nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from bigbatch.data.cleaning import clean_review
from bigbatch.models.config import LSTMConfig, MLSTMConfig
from bigbatch.models.lstm import LSTM
from bigbatch.models.mlstm import MLSTM
from bigbatch.sentiment import featurize as module
from bigbatch.sentiment.featurize import cell_trace, featurize, hash_model, unit_traces

# fp32: two reduction orders of a 24-wide product, carried over a few hundred bytes. fp64 shows that it is rounding.
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-13}

TEXTS = [
    "Good.",
    "",
    "Not bad at all, and the battery lasts.\nTwo lines.",
    "x" * 700,
    "It broke &amp; nobody cared",
    "été 😀 <b>bold</b>",
    "byte \udcff kept",
    "Good.",
    " ".join(["a very long review that goes on"] * 20),
]


def build(dtype: torch.dtype = torch.float32, num_layers: int = 1, seed: int = 0) -> MLSTM:
    torch.manual_seed(seed)
    model = MLSTM(MLSTMConfig(hidden_size=24, embedding_size=8, num_layers=num_layers, dropout=0.5))
    return model.to(dtype).eval()


def one_by_one(model: torch.nn.Module, texts: list[str], kind: str = "cell", layer: int = -1) -> np.ndarray:
    """The definition: a whole text through the model in one call, the final state out."""
    rows = []
    for text in texts:
        tokens = torch.tensor([list(clean_review(text))])
        with torch.no_grad():
            _, state = model.encode(tokens)  # type: ignore[operator]
        rows.append(getattr(state, kind)[layer, 0].double().numpy())
    return np.stack(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 100])
def test_batches_equal_one_by_one(dtype: torch.dtype, batch_size: int) -> None:
    model = build(dtype)
    features = featurize(model, TEXTS, batch_size=batch_size, progress=False)
    assert features.dtype == np.float32 and features.shape == (len(TEXTS), 24)
    # Features are fp32 whatever the model computes in: one rounding of that, 2**-24 of the value, comes on top.
    np.testing.assert_allclose(features, one_by_one(model, TEXTS), atol=TOLERANCE[dtype], rtol=2**-24)


def test_batching_differs_by_rounding_only(monkeypatch: pytest.MonkeyPatch) -> None:
    # In fp64 and before the conversion to fp32 nothing above its own rounding is left.
    model = build(torch.float64)
    states = {}
    monkeypatch.setattr(module, "MAX_WINDOW", 50)
    for batch_size in (1, 5):
        order, found = sorted(range(len(TEXTS)), key=lambda i: -len(clean_review(TEXTS[i]))), {}
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            with torch.no_grad():
                for done, state in module._read_batch(
                    model, [clean_review(TEXTS[i]) for i in rows], module.tqdm(disable=True)
                ):
                    found.update(zip(rows[done], state.cell[-1].numpy()))
        states[batch_size] = np.stack([found[i] for i in range(len(TEXTS))])
    np.testing.assert_allclose(states[1], states[5], atol=TOLERANCE[torch.float64], rtol=0)
    np.testing.assert_allclose(states[1], one_by_one(model, TEXTS), atol=TOLERANCE[torch.float64], rtol=0)


@pytest.mark.parametrize("window", [16, 17, 100])
def test_windows_carry_the_state(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    model = build()
    monkeypatch.setattr(module, "MAX_WINDOW", window)
    features = featurize(model, TEXTS, batch_size=4, progress=False)
    np.testing.assert_allclose(features, one_by_one(model, TEXTS), atol=TOLERANCE[torch.float32], rtol=0)


def test_equal_texts_have_equal_features_and_order_is_kept() -> None:
    model = build()
    features = featurize(model, TEXTS, batch_size=3, progress=False)
    reverse = featurize(model, TEXTS[::-1], batch_size=3, progress=False)
    np.testing.assert_allclose(features[0], features[7], atol=TOLERANCE[torch.float32])
    np.testing.assert_allclose(features, reverse[::-1], atol=TOLERANCE[torch.float32])
    assert np.abs(features[0] - features[2]).max() > 1e-2


def test_hardly_any_padding_is_computed() -> None:
    model, calls = build(), []
    encode = model.encode
    model.encode = lambda tokens, **rest: (calls.append(tokens.numel()), encode(tokens, **rest))[1]  # type: ignore
    generator = np.random.default_rng(0)
    texts = ["y" * int(n) for n in generator.integers(5, 300, size=400)]
    featurize(model, texts, batch_size=16, progress=False)
    useful = sum(len(clean_review(text)) for text in texts)
    assert useful <= sum(calls) <= 1.1 * useful


def test_memory_does_not_grow_with_the_longest_text() -> None:
    model, widths = build(), []
    encode = model.encode
    model.encode = lambda tokens, **rest: (widths.append(tokens.shape[1]), encode(tokens, **rest))[1]  # type: ignore
    featurize(model, ["z" * 5000], progress=False)
    assert max(widths) <= module.MAX_WINDOW and sum(widths) == 5003


@pytest.mark.parametrize("kind", ["cell", "hidden"])
@pytest.mark.parametrize("layer", [0, 1, -1])
def test_state_transform_and_layer(kind: str, layer: int) -> None:
    model = build(num_layers=2)
    raw = featurize(model, TEXTS, state=kind, layer=layer, progress=False)  # type: ignore[arg-type]
    np.testing.assert_allclose(raw, one_by_one(model, TEXTS, kind, layer), atol=TOLERANCE[torch.float32])
    squashed = featurize(model, TEXTS, state=kind, layer=layer, transform="tanh", progress=False)  # type: ignore[arg-type]
    np.testing.assert_allclose(squashed, np.tanh(raw), atol=1e-6)
    assert np.abs(raw - one_by_one(model, TEXTS, kind, 1 - layer % 2)).max() > 1e-3


def test_baseline_lstm_has_the_same_interface() -> None:
    torch.manual_seed(0)
    model = LSTM(LSTMConfig(hidden_size=16, embedding_size=8)).eval()
    features = featurize(model, TEXTS, progress=False)
    np.testing.assert_allclose(features, one_by_one(model, TEXTS), atol=TOLERANCE[torch.float32])


def test_dropout_is_off_and_the_mode_is_put_back() -> None:
    model = build(num_layers=2).train()
    first, second = (featurize(model, TEXTS, progress=False) for _ in range(2))
    assert model.training
    np.testing.assert_array_equal(first, second)


def test_trace_ends_in_the_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(num_layers=2)
    monkeypatch.setattr(module, "MAX_WINDOW", 32)
    for kind in ("cell", "hidden"):
        trace = cell_trace(model, TEXTS[2], state=kind)
        assert trace.shape == (len(clean_review(TEXTS[2])), 24) and trace.dtype == np.float32
        feature = featurize(model, [TEXTS[2]], state=kind, progress=False)[0]
        np.testing.assert_allclose(trace[-1], feature, atol=TOLERANCE[torch.float32])
        prefix = torch.tensor([list(clean_review(TEXTS[2])[:11])])
        with torch.no_grad():
            _, state = model.encode(prefix)  # type: ignore[misc]
        np.testing.assert_allclose(trace[10], getattr(state, kind)[-1, 0], atol=TOLERANCE[torch.float32])
    picked = cell_trace(model, TEXTS[2], units=[5, 3], transform="tanh")
    np.testing.assert_allclose(picked, np.tanh(cell_trace(model, TEXTS[2])[:, [5, 3]]), atol=1e-6)


def test_no_texts_give_no_rows() -> None:
    assert featurize(build(), [], progress=False).shape == (0, 24)


class Counted:
    """Counts the calls that reach the model, so that a cache hit is seen as none."""

    def __init__(self, model: MLSTM) -> None:
        self.model, self.calls = model, 0
        encode = model.encode

        def counting(*args, **options):
            self.calls += 1
            return encode(*args, **options)

        model.encode = counting  # type: ignore[method-assign]


def test_cache_is_used_for_the_same_question_only(tmp_path: Path) -> None:
    counted = Counted(build())

    def ask(texts: list[str] = TEXTS, model: MLSTM = counted.model, **options) -> tuple[np.ndarray, int]:
        before = counted.calls
        return featurize(model, texts, cache_dir=tmp_path, progress=False, **options), counted.calls - before

    first, calls = ask()
    assert calls > 0
    again, calls = ask()
    assert calls == 0
    np.testing.assert_array_equal(first, again)
    for change in (
        {"texts": TEXTS[:-1]},
        {"texts": [*TEXTS[1:], TEXTS[0]]},
        {"texts": ["ab", "c"]},
        {"texts": ["a", "bc"]},
        {"transform": "tanh"},
        {"state": "hidden"},
        {"model_hash": "of another model"},
    ):
        _, calls = ask(**change)  # type: ignore[arg-type]
        assert calls > 0, change
    # The same object with other weights: found out by the hash, not by identity.
    with torch.no_grad():
        next(iter(counted.model.parameters()))[0, 0] += 1
    _, calls = ask()
    assert calls > 0
    assert not any(path.suffix == ".tmp" for path in tmp_path.iterdir())


def test_damaged_cache_is_computed_again(tmp_path: Path) -> None:
    model = build()
    first = featurize(model, TEXTS, cache_dir=tmp_path, progress=False)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for damaged in (b"", whole[:100], whole[:-5], b"no numpy file at all"):
        path.write_bytes(damaged)
        np.testing.assert_array_equal(featurize(model, TEXTS, cache_dir=tmp_path, progress=False), first)
        assert path.read_bytes() == whole


def test_cache_of_another_model_under_this_name_is_found_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = featurize(build(), TEXTS, cache_dir=tmp_path / "a", progress=False)
    other = featurize(build(seed=1), TEXTS, cache_dir=tmp_path / "b", progress=False)
    ((mine,), (theirs,)) = ((tmp_path / name).iterdir() for name in "ab")
    mine.write_bytes(theirs.read_bytes())  # as after a folder was copied or a file renamed
    np.testing.assert_array_equal(featurize(build(), TEXTS, cache_dir=tmp_path / "a", progress=False), first)
    assert "are of another model or other texts and are computed again" in caplog.text and not np.allclose(first, other)


def test_what_is_no_list_of_texts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a single text was given where a list of texts is expected; write \[text\]"):
        featurize(build(), "good", progress=False)
    with pytest.raises(ValueError, match="text 1 is no string but float"):
        featurize(build(), ["good", float("nan")], progress=False)  # type: ignore[list-item]


def test_cache_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    features = featurize(build(), TEXTS, cache_dir=blocked, progress=False)
    assert features.shape == (len(TEXTS), 24)
    assert "could not be cached" in caplog.text


def test_hash_depends_on_weights_and_configuration() -> None:
    model = build()
    assert hash_model(model) == hash_model(build())
    assert hash_model(model) != hash_model(build(seed=1))
    assert hash_model(model) != hash_model(build(torch.float64))


def test_bad_options_are_one_clear_line() -> None:
    model = build()
    with pytest.raises(ValueError, match="layer 1 does not exist: the model has 1"):
        featurize(model, TEXTS, layer=1, progress=False)
    with pytest.raises(ValueError, match="state is 'cells'; choose one of cell, hidden"):
        featurize(model, TEXTS, state="cells", progress=False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="units 0 to 23"):
        cell_trace(model, "x", units=[24])
    with pytest.raises(ValueError, match="batch_size is 0"):
        featurize(model, TEXTS, batch_size=0, progress=False)
    words = MLSTM(MLSTMConfig(vocab_size=100, hidden_size=8, embedding_size=4))
    with pytest.raises(ValueError, match="vocabulary of 100"):
        featurize(words, TEXTS, progress=False)


@pytest.mark.parametrize(("state", "transform"), [("cell", "raw"), ("hidden", "tanh")])
def test_traces_of_many_texts_are_those_of_each(state: str, transform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, options = build(num_layers=2), {"state": state, "transform": transform}
    monkeypatch.setattr(module, "MAX_WINDOW", 50)
    found = unit_traces(model, TEXTS, 7, batch_size=4, progress=False, **options)  # type: ignore[arg-type]
    assert [len(trace) for trace in found] == [len(clean_review(text)) for text in TEXTS]
    for text, trace in zip(TEXTS, found):
        expected = cell_trace(model, text, units=[7], **options)[:, 0]  # type: ignore[arg-type]
        np.testing.assert_allclose(trace, expected, atol=TOLERANCE[torch.float32])
    with pytest.raises(ValueError, match="unit 24 does not exist"):
        unit_traces(model, TEXTS, 24)
    assert unit_traces(model, [], 7) == []
