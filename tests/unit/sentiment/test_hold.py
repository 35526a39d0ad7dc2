"""A held unit stays where it is put and changes what is written; the value of a class against its definition."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bigbatch.data.labelled import load_labelled
from bigbatch.inference.decode import decode
from bigbatch.inference.sampling import Sampling
from bigbatch.models.config import MLSTMConfig
from bigbatch.models.mlstm import MLSTM
from bigbatch.models.recurrent import RecurrentState
from bigbatch.sentiment.classify import load_probed
from bigbatch.sentiment.featurize import featurize
from bigbatch.sentiment.hold import class_value, hold_units, parse_held
from bigbatch.sentiment.transfer import run_transfer
from bigbatch.training.checkpoint import load_model

PROMPT = b"\n The lid"


@pytest.fixture(scope="module")
def model() -> MLSTM:
    torch.manual_seed(0)
    model = MLSTM(MLSTMConfig(hidden_size=12, embedding_size=6, num_layers=2)).eval()
    with torch.no_grad():
        model.output.weight.mul_(10)
    return model


def test_cell_of_a_held_unit_is_constant_and_all_else_runs_free(model: MLSTM) -> None:
    seen: list[RecurrentState] = []
    hold = hold_units({3: 1.5, 7: -2.0}, 12)

    def watch(state: RecurrentState) -> RecurrentState:
        before = state.cell.clone()
        state = hold(state)
        changed = (state.cell != before).any(dim=1)
        assert not changed[0].any() and set(torch.nonzero(changed[1]).ravel().tolist()) <= {3, 7}
        seen.append(state)
        return state

    decode(model, [PROMPT] * 3, 30, after_step=watch)
    cells = torch.stack([state.cell[-1, :3] for state in seen])
    assert len(cells) == 30 and (cells[..., 3] == 1.5).all() and (cells[..., 7] == -2.0).all()
    free = [unit for unit in range(12) if unit not in (3, 7)]
    assert (cells[:, :, free].std(dim=0) > 0).all()


def test_holding_is_a_loop_with_the_cell_overwritten(model: MLSTM) -> None:
    """Against whole steps in fp64 written out, the state overwritten by hand."""
    model = MLSTM(model.config).double()  # type: ignore[arg-type]
    torch.manual_seed(0)
    reference = MLSTM(MLSTMConfig(hidden_size=12, embedding_size=6, num_layers=2)).double().eval()
    with torch.no_grad():
        reference.output.weight.mul_(10)
        logits, state = reference(torch.tensor([list(PROMPT)]))
        text = []
        for _ in range(40):
            text.append(int(logits[0, -1].argmax()))
            state.cell[-1, 0, 3] = 4.0
            logits, state = reference(torch.tensor([text[-1:]]), state)
    model.load_state_dict(reference.state_dict())
    greedy = Sampling(temperature=0)
    held = decode(model.float(), [PROMPT], 40, greedy, after_step=hold_units({3: 4.0}, 12))
    assert held == [bytes(text)]
    assert held != decode(model, [PROMPT], 40, greedy)
    assert held != decode(model, [PROMPT], 40, greedy, after_step=hold_units({3: -4.0}, 12))
    assert held[0][:1] == decode(model, [PROMPT], 40, greedy)[0][:1]  # written from the prompt's own state


def test_holding_nothing_changes_nothing(model: MLSTM) -> None:
    assert decode(model, [PROMPT], 20, after_step=hold_units({}, 12)) == decode(model, [PROMPT], 20)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["42"], "'42' is no unit with its value; write UNIT=VALUE such as 42=1.5"),
        (["x=1"], "'x=1' is no unit"),
        (["4=high"], "'4=high' is no unit"),
        (["4=1", "4=2"], "unit 4 is held at 1 and at 2; choose one value"),
    ],
)
def test_words_that_hold_nothing(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_held(words)


def test_units_and_values_that_cannot_be_held() -> None:
    assert parse_held(["42=1.5", "7=-2e0"]) == {42: 1.5, 7: -2.0}
    with pytest.raises(ValueError, match="unit 12 does not exist: the model has units 0 to 11"):
        hold_units({12: 1.0}, 12)
    with pytest.raises(ValueError, match="unit 3 cannot be held at nan: the value must be finite"):
        hold_units(parse_held(["3=nan"]), 12)


def transfer(run_dir: Path, files: dict[str, Path], **options: Any) -> dict[str, Any]:
    parts = [load_labelled(files[name]) for name in ("train", "val", "test")]
    run_transfer(load_model(run_dir), *parts, out_dir=run_dir, task="shop", progress=False, **options)
    return load_probed(run_dir)[2]


@pytest.mark.parametrize("transform", ["raw", "tanh"])
def test_value_of_a_class_is_the_mean_of_its_furthest_tenth(
    transform: str, run_dir: Path, files: dict[str, Path]
) -> None:
    about = transfer(run_dir, files, transform=transform)
    test = load_labelled(files["test"])
    cells = featurize(load_model(run_dir).model, test.texts, progress=False)[:, about["unit"]["index"]]
    found = {}
    for number, name in enumerate(test.classes):
        values = sorted(cells[test.labels == number].tolist())
        top = values[-4:] if (about["unit"]["sign"] > 0) == (number == 1) else values[:4]
        value = class_value(run_dir, about, name)
        assert (value.unit, value.num_texts, value.class_name) == (about["unit"]["index"], 4, name)
        assert value.value == pytest.approx(np.mean(top), abs=2e-5)
        found[name] = value.value
    sign, threshold = about["unit"]["sign"], about["unit"]["threshold"]
    limit = np.arctanh(threshold) if transform == "tanh" else threshold
    assert sign * found["negative"] < sign * limit < sign * found["positive"]


def test_without_labels_the_probe_says_which_texts(run_dir: Path, files: dict[str, Path], tmp_path: Path) -> None:
    about = transfer(run_dir, files)
    (path,) = (run_dir / "results").glob("*.csv")
    rows = list(csv.DictReader(path.open(newline="")))
    expected = [float(row["unit"]) for row in rows if row["predicted"] == "positive"]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({**row, "label": ""} for row in rows)
    count = round(0.1 * len(expected))
    top = sorted(expected, key=lambda x: x * about["unit"]["sign"])[-count:]
    assert class_value(run_dir, about, "positive").value == pytest.approx(np.mean(top))


def test_no_value_of_a_class(run_dir: Path, files: dict[str, Path], three_classes: dict[str, Path]) -> None:
    about = transfer(run_dir, files)
    with pytest.raises(ValueError, match="task 'shop' has no class 'good'; it has negative, positive"):
        class_value(run_dir, about, "good")
    hidden = {**about, "features": {**about["features"], "state": "hidden"}}
    with pytest.raises(ValueError, match="reads the hidden state, but only the cell state can be held"):
        class_value(run_dir, hidden, "positive")
    (path,) = (run_dir / "results").glob("*.csv")
    (result,) = (run_dir / "results").glob("*.json")
    path.write_text("index,row,label,predicted,unit\n0,1,negative,negative,0.5\n")
    with pytest.raises(ValueError, match="holds no text of class 'positive'; name a unit of your own with --unit"):
        class_value(run_dir, about, "positive")
    path.write_text("index,row\n0,1\n")
    with pytest.raises(ValueError, match=r"is no file of predictions .*; run bigbatch transfer again"):
        class_value(run_dir, about, "positive")
    path.unlink()
    with pytest.raises(
        ValueError, match=r"predictions\.csv is gone: run bigbatch transfer --run-dir .* --task shop again"
    ):
        class_value(run_dir, about, "positive")
    result.write_text(json.dumps({"predictions": 3})[:-3])
    with pytest.raises(ValueError, match=r"cannot be read .*: run bigbatch transfer"):
        class_value(run_dir, about, "positive")
    about = transfer(run_dir, three_classes)
    with pytest.raises(
        ValueError, match="has more than two classes and no best unit; name a unit of your own with --unit"
    ):
        class_value(run_dir, about, "positive")
