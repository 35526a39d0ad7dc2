"""OpenAI's arrays against their own equations, and there and back to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bigbatch.models.interchange.openai import read_openai, write_openai

V, E, H = 256, 6, 5


def make_arrays(layers: int = 1, weight_norm: bool = True, vocab: int = V, dtype: str = "float32") -> list[np.ndarray]:
    """The arrays in the order in which encoder.py asks for them."""
    draw = np.random.default_rng(3)
    shapes: list[tuple[int, ...]] = [(vocab, E)]
    for layer in range(layers):
        inputs = H if layer else E
        shapes += [(inputs, 4 * H), *[(H, H)] * 4, (inputs, H), (H, H), (4 * H,)]
        shapes += [(4 * H,), (4 * H,), (H,), (H,)] if weight_norm else []
    return [draw.normal(size=shape).astype(dtype) for shape in [*shapes, (H, vocab), (vocab,)]]


def save_arrays(folder: Path, arrays: list[np.ndarray]) -> Path:
    folder.mkdir()
    for number, array in enumerate(arrays):
        np.save(folder / f"{number}.npy", array)
    return folder


def l2_normalize(w: np.ndarray) -> np.ndarray:
    """TensorFlow's, over the inputs: w * rsqrt(max(sum of squares, 1e-12))."""
    return w / np.sqrt(np.maximum((w**2).sum(axis=0), 1e-12))


def their_layers(arrays: list[np.ndarray], weight_norm: bool) -> list[dict]:
    """The cells as encoder.py writes them, reading the arrays in its order."""
    rest = [array.astype(np.float64) for array in arrays[1:-2]]
    layers = []
    while rest:
        wx, wh = rest[0], np.concatenate(rest[1:5], axis=1)
        wmx, wmh, b = rest[5:8]
        rest = rest[8:]
        if weight_norm:
            wx, wh, wmx, wmh = (l2_normalize(w) * g for w, g in zip((wx, wh, wmx, wmh), rest[:4]))
            rest = rest[4:]

        def gates(x: np.ndarray, h: np.ndarray, wx=wx, wh=wh, wmx=wmx, wmh=wmh, b=b) -> dict[str, np.ndarray]:
            m = (x @ wmx) * (h @ wmh)
            return dict(zip("ifou", np.split(x @ wx + m @ wh + b, 4, axis=1)))

        layers.append({"size": len(wmh), "gates": gates})
    return layers


@pytest.mark.parametrize("weight_norm", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_states_and_logits_are_those_of_their_equations(
    layers: int, weight_norm: bool, tmp_path: Path, tokens: np.ndarray, run_cells: Callable, run_ours: Callable
) -> None:
    arrays = make_arrays(layers, weight_norm)
    theirs = run_cells(tokens, arrays[0], their_layers(arrays, weight_norm), arrays[-2], arrays[-1])
    weights = read_openai(save_arrays(tmp_path / "model", arrays))
    assert (weights.config.num_layers, weights.config.weight_norm) == (layers, weight_norm)
    run_ours(weights).assert_close(theirs)


@pytest.mark.parametrize(
    ("layers", "weight_norm", "vocab"), [(1, True, 256), (2, True, 257), (1, False, 256), (3, False, 256)]
)
def test_there_and_back_is_exact_both_ways(layers: int, weight_norm: bool, vocab: int, tmp_path: Path) -> None:
    arrays = make_arrays(layers, weight_norm, vocab)
    weights = read_openai(save_arrays(tmp_path / "model", arrays))
    notes = write_openai(weights, tmp_path / "again")
    for number, array in enumerate(arrays):
        again = np.load(tmp_path / "again" / f"{number}.npy")
        assert again.dtype == np.float32 and again.tobytes() == array.tobytes(), number
        assert again.flags.c_contiguous
    assert len(list((tmp_path / "again").iterdir())) == len(arrays)
    assert any("rnn_wn=False" in note for note in notes) == (not weight_norm)
    back = read_openai(tmp_path / "again").tensors
    assert back.keys() == weights.tensors.keys()
    assert all(back[name].numpy().tobytes() == tensor.numpy().tobytes() for name, tensor in weights.tensors.items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "model"]


def test_the_released_shapes_are_files_0_to_14(facts: Path) -> None:
    import csv

    from bigbatch.models.interchange.openai import file_names

    listed = [row["file"] for row in csv.DictReader((facts / "openai_weight_files.csv").open())]
    names = file_names(1, True)
    assert [files[0] for files in names.values() if len(files) == 1] == [f for f in listed if "-" not in f]
    assert names["layers.0.wh.v"] == ["2.npy", "3.npy", "4.npy", "5.npy"] and "2-5.npy" in listed


def test_other_types_are_widened_and_said(tmp_path: Path) -> None:
    half = read_openai(save_arrays(tmp_path / "half", make_arrays(dtype="float16")))
    assert "stored in float16, widened to fp32: exact" in half.notes
    big = read_openai(save_arrays(tmp_path / "big", make_arrays(dtype=">f4")))
    assert big.tensors["output.bias"].numpy().tobytes() == make_arrays()[-1].tobytes()
    double = read_openai(save_arrays(tmp_path / "double", make_arrays(dtype="float64")))
    assert "stored in float64, rounded to fp32: not exact" in double.notes


def test_what_is_missing_or_wrong_is_named(tmp_path: Path) -> None:
    folder = save_arrays(tmp_path / "model", make_arrays())
    (folder / "8.npy").unlink()
    with pytest.raises(ValueError, match=r"lacks 8\.npy: the arrays are not whole"):
        read_openai(folder)
    np.save(folder / "8.npy", np.zeros(4 * H + 1, np.float32))
    with pytest.raises(ValueError, match=r"layers\.0\.bias is \(21,\) and should be \(20,\)"):
        read_openai(folder)
    np.save(folder / "8.npy", np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match=r"8\.npy has 2 dimensions; layers\.0\.bias has 1"):
        read_openai(folder)
    np.save(folder / "8.npy", np.zeros(4 * H, np.int64))
    with pytest.raises(ValueError, match=r"8\.npy is no array of weights in floating point"):
        read_openai(folder)
    (folder / "8.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(ValueError, match=r"8\.npy is no array that can be read"):
        read_openai(folder)
    np.save(folder / "8.npy", make_arrays()[8])
    np.save(folder / "3.npy", np.zeros((H + 1, H), np.float32))
    with pytest.raises(ValueError, match=r"column chunks of layers\.0\.wh\.v differ in rows: 2\.npy"):
        read_openai(folder)
    np.save(folder / "15.npy", np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"holds 16 arrays, 0\.npy to 15\.npy; L layers with gains are 12 L \+ 3"):
        read_openai(folder)


def test_objects_in_an_array_are_not_executed(tmp_path: Path) -> None:
    folder = save_arrays(tmp_path / "model", make_arrays())
    mark = tmp_path / "mark"
    np.save(folder / "8.npy", np.array([Opener(str(mark))], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="no array that can be read"):
        read_openai(folder)
    assert not mark.exists()


class Opener:
    """A pickle of this opens a file for writing when it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return open, (self.path, "w")


def test_nothing_is_overwritten_or_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = read_openai(save_arrays(tmp_path / "model", make_arrays()))
    with pytest.raises(ValueError, match="model is not empty"):
        write_openai(weights, tmp_path / "model")
    saved = np.save

    def full(path: Path, array: np.ndarray, **options: bool) -> None:
        if path.name == "5.npy":
            raise OSError("no space left")
        saved(path, array, **options)

    monkeypatch.setattr("bigbatch.models.interchange.openai.np.save", full)
    with pytest.raises(OSError, match="no space"):
        write_openai(weights, tmp_path / "again")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
