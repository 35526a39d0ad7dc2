"""Every layout of NVIDIA's files against their own equations; what is refused, and there and back to the bit."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bigbatch.models.interchange.nvidia import read_nvidia, write_nvidia

E, H = 6, 5
ROWS = {"w_ih": (4 * H, E), "w_hh": (4 * H, H), "w_mih": (H, E), "w_mhh": (H, H)}
OLD_NAMES = {"w_ih": "wx", "w_hh": "wh", "w_mih": "wmx", "w_mhh": "wmh"}


def drawn(seed: int = 3) -> Callable[..., torch.Tensor]:
    generator = np.random.default_rng(seed)
    return lambda *shape: torch.from_numpy(generator.normal(size=shape).astype(np.float32))


def make_rnn(layers: int, weight_norm: bool, biases: int) -> dict[str, torch.Tensor]:
    """State of their stackedRNN of mLSTM cells."""
    draw, rnn = drawn(), {}
    for layer in range(layers):
        for name, (rows, columns) in ROWS.items():
            columns = H if layer and columns == E else columns
            if weight_norm:
                rnn[f"rnns.{layer}.{name}_g"] = draw(rows, 1)
            rnn[f"rnns.{layer}.{name}{'_v' if weight_norm else ''}"] = draw(rows, columns)
        # On a grid on which the sum of two is exact in fp32, so that all is compared to fp64.
        rnn |= {f"rnns.{layer}.{name}": draw(4 * H).mul(64).round() / 64 for name in ("b_ih", "b_hh")[:biases]}
    return rnn


def make_model(layers: int = 1, weight_norm: bool = True, biases: int = 2, vocab: int = 256) -> dict[str, Any]:
    """What `model.state_dict()` of their RNNModel gives, v0.3 to HEAD."""
    draw = drawn(4)
    encoder = {"encoder": {"weight": draw(vocab, E)}, "rnn": make_rnn(layers, weight_norm, biases)}
    return {"encoder": encoder, "decoder": {"weight": draw(vocab, H), "bias": draw(vocab)}}


def make_old(weight_norm: bool = True, output_norm: bool = False) -> dict[str, torch.Tensor]:
    """What v0.1 saves: a flat dictionary; with -lstm_only weight norm does not reach the output layer."""
    draw, flat = drawn(6), {}
    flat["embedder.weight"] = draw(256, E)
    for name, shape in ROWS.items():
        key = f"rnn.layers.0.{OLD_NAMES[name]}.weight"
        if weight_norm:
            flat |= {f"{key}_g": draw(shape[0], 1), f"{key}_v": draw(*shape)}
        else:
            flat[key] = draw(*shape)
    flat["rnn.layers.0.wh.bias"] = draw(4 * H)
    if output_norm:
        flat |= {"rnn.h2o.weight_g": draw(256, 1), "rnn.h2o.weight_v": draw(256, H)}
    else:
        flat["rnn.h2o.weight"] = draw(256, H)
    return {**flat, "rnn.h2o.bias": draw(256)}


def save(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def matrix(state: dict[str, torch.Tensor], name: str) -> np.ndarray:
    """A weight as their WeightNorm computes it, v * (g / norm(v)), the norm over all dimensions but 0; in fp64."""
    if name in state:
        return state[name].numpy().astype(np.float64)
    v, g = (state[f"{name}_{leaf}"].numpy().astype(np.float64) for leaf in "vg")
    return v * (g / np.linalg.norm(v, axis=1, keepdims=True))


def cell(state: dict, names: dict[str, str], bias: np.ndarray, letters: str) -> dict:
    """One of their cells, F.linear(x, W) = x W^T, gates by `letters` (j and g are the candidate)."""
    w_ih, w_hh, w_mih, w_mhh = (matrix(state, names[name]) for name in ROWS)

    def gates(x: np.ndarray, h: np.ndarray) -> dict[str, np.ndarray]:
        m = (x @ w_mih.T) * (h @ w_mhh.T)
        blocks = np.split(x @ w_ih.T + m @ w_hh.T + bias, 4, axis=1)
        return dict(zip(letters.replace("j", "u").replace("g", "u"), blocks))

    return {"size": len(w_mhh), "gates": gates}


def new_cells(rnn: dict[str, torch.Tensor], letters: str) -> list[dict]:
    layers = []
    for layer in range(1 + max(int(key.split(".")[1]) for key in rnn)):
        bias = sum(rnn[key].numpy().astype(np.float64) for key in rnn if key.startswith(f"rnns.{layer}.b_"))
        layers.append(cell(rnn, {name: f"rnns.{layer}.{name}" for name in ROWS}, bias, letters))
    return layers


@pytest.mark.parametrize("vocab", [256, 257])
@pytest.mark.parametrize("biases", [1, 2])
@pytest.mark.parametrize("weight_norm", [True, False])
@pytest.mark.parametrize("letters", ["ifoj", "ifgo"])
@pytest.mark.parametrize("layers", [1, 2])
def test_states_and_logits_are_those_of_their_equations(
    layers: int, letters: str, weight_norm: bool, biases: int, vocab: int, tmp_path: Path,
    tokens: np.ndarray, run_cells: Callable, run_ours: Callable,
) -> None:  # fmt: skip
    model = make_model(layers, weight_norm, biases, vocab)
    shift = vocab - 256  # their tokenizer: byte b has id b + 1 beside one padding id
    theirs = run_cells(
        tokens + shift, model["encoder"]["encoder"]["weight"].numpy(), new_cells(model["encoder"]["rnn"], letters),
        model["decoder"]["weight"].numpy().T, model["decoder"]["bias"].numpy(),
    )  # fmt: skip
    if shift:
        theirs.logits = np.concatenate([theirs.logits[..., 1:], theirs.logits[..., :1]], axis=-1)
    weights = read_nvidia(save(tmp_path / "lm.pt", model), letters)
    config = weights.config
    assert (config.num_layers, config.weight_norm, config.vocab_size) == (layers, weight_norm, vocab)
    assert any("added in fp32: rounded once" in note for note in weights.notes) == (biases == 2)
    run_ours(weights).assert_close(theirs)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("letters", ["ifoj", "ifgo"])
@pytest.mark.parametrize("weight_norm", [True, False])
def test_version_0_1(
    weight_norm: bool, letters: str, nested: bool, tmp_path: Path, tokens: np.ndarray, run_cells: Callable,
    run_ours: Callable,
) -> None:  # fmt: skip
    flat = make_old(weight_norm)
    names = {name: f"rnn.layers.0.{OLD_NAMES[name]}.weight" for name in ROWS}
    layer = cell(flat, names, flat["rnn.layers.0.wh.bias"].numpy().astype(np.float64), letters)
    theirs = run_cells(
        tokens, flat["embedder.weight"].numpy(), [layer], flat["rnn.h2o.weight"].numpy().T, flat["rnn.h2o.bias"].numpy()
    )
    content = {"state_dict": flat, "epoch": 3} if nested else flat
    weights = read_nvidia(save(tmp_path / "old.pt", content), letters)
    run_ours(weights).assert_close(theirs)
    assert any("layout v0.1" in note for note in weights.notes)
    assert any("left out: epoch" in note for note in weights.notes) == nested


def test_version_0_1_with_weight_norm_on_the_output_layer_folds_it(tmp_path: Path) -> None:
    flat = make_old(output_norm=True)
    weights = read_nvidia(save(tmp_path / "old.pt", flat), "ifoj")
    np.testing.assert_allclose(weights.tensors["output.weight"].numpy(), matrix(flat, "rnn.h2o.weight"), rtol=1e-6)
    assert any("output layer folded into its matrix: rounded once" in note for note in weights.notes)


def nestings() -> dict[str, tuple[Any, bool]]:
    """Each way in which the model stands in a file, and whether the output layer is in it."""
    model = make_model()
    bare, classifier = model["encoder"], {"weight": torch.ones(1, H), "bias": torch.ones(1)}
    lm_encoder = {"encoder": bare, "decoder": model["decoder"]}
    args = argparse.Namespace(nhid=H, classes=["a"], classifier_hidden_layers=None)
    flat = {f"rnn.{name}": tensor for name, tensor in bare["rnn"].items()}
    flat |= {"encoder.weight": bare["encoder"]["weight"]}
    flat |= {f"decoder.{name}": tensor for name, tensor in model["decoder"].items()}
    return {
        "language model": (model, True),
        "features alone": (bare, False),
        "v0.3 transfer": ({"encoder": bare, "classifier": classifier}, False),
        "v0.3 published": ({**model, "classifier": {**classifier, "neurons": None, "thresholds": [0.5]}}, True),
        "encoder of a classifier": ({"encoder": lm_encoder, "classifier": classifier}, True),
        "HEAD classifier": (
            {"sd": {"lm_encoder": {"encoder": bare}, "classifier": {"sd": classifier}}, "args": args}, False
        ),
        "HEAD classifier with its language model": (
            {"sd": {"lm_encoder": lm_encoder, "classifier": {"sd": classifier}}, "args": args}, True
        ),
        "names of the module itself": (flat, True),
        "wrapped for data parallelism": ({f"module.{name}": tensor for name, tensor in flat.items()}, True),
    }  # fmt: skip


@pytest.mark.parametrize("name", nestings())
def test_nestings(name: str, tmp_path: Path) -> None:
    content, has_output = nestings()[name]
    path = save(tmp_path / "file.pt", content)
    expected = read_nvidia(save(tmp_path / "lm.pt", make_model()), "ifgo").tensors
    if "classifier" in name or name.startswith("v0.3"):
        with pytest.raises(ValueError, match=r"holds a classifier .*classifier.*weight\).*--ignore classifier"):
            read_nvidia(path, "ifgo")
    if not has_output:
        with pytest.raises(ValueError, match=r"missing: .*decoder\.weight, .*decoder\.bias \(--ignore decoder reads"):
            read_nvidia(path, "ifgo", ["classifier"])
    told = None if "HEAD" in name else "ifgo"  # lm_encoder came after the change of order
    weights = read_nvidia(path, told, ["classifier", "decoder"])
    for key, tensor in expected.items():
        if has_output or not key.startswith("output"):
            assert weights.tensors[key].numpy().tobytes() == tensor.numpy().tobytes(), key
        else:
            assert not weights.tensors[key].any()
    assert any("no output layer" in note for note in weights.notes) == (not has_output)


def test_the_order_of_gates_is_told_or_asked_for(tmp_path: Path) -> None:
    path = save(tmp_path / "lm.pt", make_model())
    with pytest.raises(
        ValueError, match=r"does not tell the order of its gates.*--gate-order ifoj .*--gate-order ifgo"
    ):
        read_nvidia(path)
    with pytest.raises(ValueError, match="does not tell the order of its gates"):
        read_nvidia(save(tmp_path / "old.pt", make_old()))
    head = read_nvidia(save(tmp_path / "head.pt", make_model(vocab=257)))
    assert "gates i, f, g, o: a vocabulary of 257 came after the change of order" in head.notes
    both = [read_nvidia(path, order).tensors["layers.0.bias"].view(4, H) for order in ("ifoj", "ifgo")]
    assert torch.equal(both[0][[0, 1, 3, 2]], both[1]) and not torch.equal(both[0], both[1])
    given = read_nvidia(tmp_path / "head.pt", "ifoj")
    assert any(note.startswith("gates i, f, o, j: as given, against the file") for note in given.notes)


@pytest.mark.parametrize("order", [None, "ifoj", "ifgo"])
@pytest.mark.parametrize("weight_norm", [True, False])
@pytest.mark.parametrize("vocab", [256, 257])
def test_ours_there_and_back_is_exact(order: str | None, weight_norm: bool, vocab: int, tmp_path: Path) -> None:
    weights = read_nvidia(save(tmp_path / "lm.pt", make_model(2, weight_norm, 1, vocab)), "ifgo")
    weights.tensors["layers.0.bias"][:2] = -0.0
    write_nvidia(weights, tmp_path / "again.pt", order)
    back = read_nvidia(tmp_path / "again.pt")  # the order is in the file
    assert back.config == weights.config and back.tensors.keys() == weights.tensors.keys()
    for name, tensor in weights.tensors.items():
        assert back.tensors[name].numpy().tobytes() == tensor.numpy().tobytes(), name


@pytest.mark.parametrize("vocab", [256, 257])
def test_theirs_there_and_back_is_exact(vocab: int, tmp_path: Path) -> None:
    """What their own load_state_dict will find is what it had saved, to the bit, but for the sum of two biases."""
    model = make_model(2, True, 1, vocab)
    write_nvidia(read_nvidia(save(tmp_path / "lm.pt", model), "ifgo"), tmp_path / "again.pt")
    again = torch.load(tmp_path / "again.pt", weights_only=True)
    assert again.pop("gate_order") == "ifgo" and again.keys() == model.keys()
    rnn = again["encoder"]["rnn"]
    for layer in range(2):
        assert not rnn.pop(f"rnns.{layer}.b_hh").any()
    assert rnn.keys() == model["encoder"]["rnn"].keys()
    for name, tensor in model["encoder"]["rnn"].items():
        assert rnn[name].shape == tensor.shape and rnn[name].numpy().tobytes() == tensor.numpy().tobytes(), name
    assert torch.equal(again["encoder"]["encoder"]["weight"], model["encoder"]["encoder"]["weight"])
    assert all(torch.equal(again["decoder"][name], tensor) for name, tensor in model["decoder"].items())


def test_half_precision_and_old_containers(tmp_path: Path) -> None:
    model = make_model(biases=1)
    model["encoder"]["rnn"] = {name: tensor.half() for name, tensor in model["encoder"]["rnn"].items()}
    torch.save(model, tmp_path / "half.pt", _use_new_zipfile_serialization=False)  # as before torch 1.6
    weights = read_nvidia(tmp_path / "half.pt", "ifgo")
    assert "stored in float16, widened to fp32: exact" in weights.notes
    assert torch.equal(weights.tensors["layers.0.wh.g"][:H], model["encoder"]["rnn"]["rnns.0.w_hh_g"][:H, 0].float())


class Opener:
    """A pickle of this makes a folder when it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_is_refused_in_one_line(zipped: bool, tmp_path: Path) -> None:
    mark, path = tmp_path / "mark", tmp_path / "evil.pt"
    torch.save({**make_model(), "extra": Opener(str(mark))}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"evil\.pt is refused: it calls \w+\.mkdir; nothing in it was executed$"):
        read_nvidia(path, "ifgo")
    assert not mark.exists()
    torch.load(path, weights_only=False)  # the file is what it is taken for
    assert mark.is_dir()


def test_what_is_no_such_file_is_one_line(tmp_path: Path) -> None:
    for name, content in {"empty.pt": b"", "text.pt": b"hello\nworld", "cut.pt": b"PK\x03\x04 cut"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name} (cannot be read|is refused)") as error:
            read_nvidia(tmp_path / name)
        assert "\n" not in str(error.value)


def without(model: dict[str, Any], *names: str, **more: torch.Tensor) -> dict[str, Any]:
    rnn = {name: tensor for name, tensor in model["encoder"]["rnn"].items() if name not in names}
    return {**model, "encoder": {**model["encoder"], "rnn": {**rnn, **more}}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: without(make_model(), "rnns.0.w_hh_g"), r"missing: encoder\.rnn\.rnns\.0\.w_hh_g$"),
        (lambda: without(make_model(), "rnns.0.b_ih", "rnns.0.b_hh"), r"missing: encoder\.rnn\.rnns\.0\.b_ih$"),
        (lambda: {**make_model(), "optim": {"m": torch.ones(2)}}, r"unused: optim\.m$"),
        (lambda: {**make_model(), "optim": [torch.ones(2), torch.ones(2)]}, r"unused: optim\.0, optim\.1$"),
        (
            lambda: without(make_model(), "rnns.0.w_hh_g", "rnns.0.w_hh_v", **{"rnns.0.w_hh": torch.ones(4 * H, H)}),
            "weight norm on 3 of 4 matrices; all or none",
        ),
        (lambda: without(make_model(), *(f"rnns.0.w_m{x}h_{y}" for x in "ih" for y in "vg")), "holds an LSTM"),
        (lambda: make_model(vocab=300), "vocabulary of 300: only bytes are read, 256, or 257 with padding"),
        (lambda: without(make_model(), **{"rnns.0.b_hh": torch.ones(3)}), "b_ih and .*b_hh differ in shape"),
        (lambda: without(make_model(), **{"rnns.0.w_hh_v": torch.ones(3, H)}), r"wh\.v is \(3, 5\) and should be"),
        (lambda: {"a": make_model(), "b": make_model()}, r"holds several models: a\.encoder\., b\.encoder\."),
        (lambda: {"weight": torch.ones(2)}, "holds no mLSTM of NVIDIA/sentiment-discovery; it has weight"),
        (lambda: {"n": 3}, "it has no tensors"),
        (
            lambda: {**make_old(), **{k.replace("s.0", "s.1"): v for k, v in make_old().items() if "s.0" in k}},
            "2 layers of layout v0.1, which adds the input of a layer to its output",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(content: Callable[[], Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_nvidia(save(tmp_path / "lm.pt", content()), "ifgo")


def test_writing_refuses_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "lm.pt", make_model())
    weights = read_nvidia(path, "ifgo")
    with pytest.raises(ValueError, match=r"lm\.pt exists: name another file"):
        write_nvidia(weights, path)

    def full(content: Any, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr("bigbatch.models.interchange.torch_file.torch.save", full)
    with pytest.raises(OSError, match="no space"):
        write_nvidia(weights, tmp_path / "new.pt")
    assert [item.name for item in tmp_path.iterdir()] == ["lm.pt"]
