"""What went wrong in the projects before this one cannot happen here; docs/predecessors.md says which test shows what.

Only what no other test shows is tested in this file, theme by theme. The last part holds the page itself to the tests
it names and to the list of problems it was written from.
"""

from __future__ import annotations

import ast
import copy
import csv
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from bigbatch.data.cleaning import clean_review
from bigbatch.inference.decode import decode
from bigbatch.models.config import MLSTMConfig
from bigbatch.models.mlstm import MLSTM
from bigbatch.models.recurrent import RecurrentState
from bigbatch.scripts.cli import main
from bigbatch.sentiment.classify import Classifier
from bigbatch.sentiment.featurize import featurize
from bigbatch.sentiment.thresholds import search_thresholds
from bigbatch.training.checkpoint import Checkpoint, load_model, save_checkpoint
from bigbatch.training.loss import sequence_loss
from bigbatch.training.metrics import read_metrics
from torch import Tensor, nn

REPO = Path(__file__).resolve().parents[2]
PAGE = REPO / "docs" / "predecessors.md"


def call(*argv: str | Path) -> int:
    return main([str(word) for word in argv])


def build(seed: int = 0, num_layers: int = 1) -> MLSTM:
    torch.manual_seed(seed)
    return MLSTM(MLSTMConfig(hidden_size=12, embedding_size=6, num_layers=num_layers)).eval()


class Journey(NamedTuple):
    """A small model's way from text to labels.

    Attributes:
        run_dir: its run folder: five steps in fp16, logged at the third and at the last.
        files: labelled texts to train, validate and test on.
        statuses: exit status of each command, by its name.
        cudnn: whether cuDNN was on after them; it was before.
    """

    run_dir: Path
    files: dict[str, Path]
    statuses: dict[str, int]
    cudnn: bool


MOODS = {"wistful": "grey", "angry": "loud", "merry": "sweet"}  # in an order that is not the alphabet's


def train(corpus: Path, run_dir: Path, interval: int) -> int:
    options = (
        "--model.hidden-size 16 --batch.global-batch-size 8 --batch.seq-length 16 --schedule.samples 40 --device cpu"
    )
    more = f"--precision fp16 --data.min-heldout-bytes 500 --log.progress false --log.interval-samples {interval}"
    return call("train", "--data.paths", corpus, "--run-dir", run_dir, *options.split(), *more.split())


def write_moods(path: Path, names: list[str], n: int = 60) -> Path:
    rows = [f"{name},The lamp number {i} is {MOODS[name]}" for i in range(n // len(names)) for name in names]
    path.write_text("label,sentence\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def journey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journey]:
    """Every command that a user needs, where apex cannot be imported and torch's DataLoader cannot be made."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a DataLoader was made")

    folder = tmp_path_factory.mktemp("journey")
    run_dir, corpus = folder / "run", folder / "reviews.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"review {i} of a thing {i * i}"}) + "\n" for i in range(400)))
    files = {name: write_moods(folder / f"{name}.csv", list(MOODS)) for name in ("train", "val", "test")}
    parts = [word for name, path in files.items() for word in (f"--{name}", path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "apex", None)
        patch.setattr(torch.utils.data.DataLoader, "__init__", refuse)
        statuses = {
            "train": train(corpus, run_dir, interval=24),
            "transfer": call("transfer", "--run-dir", run_dir, *parts, "--task", "mood", "--no-cache"),
            "classify": call("classify", "--run-dir", run_dir, "The lamp is sweet"),
            "generate": call("generate", "--run-dir", run_dir, "--num-bytes", "4"),
        }
        yield Journey(run_dir, files, statuses, torch.backends.cudnn.enabled)


# ---- install, cpu, versions --------------------------------------------------------------------------------------------


def test_install_and_cpu_the_whole_way_needs_no_apex_and_no_gpu(journey: Journey) -> None:
    """There, a CUDA extension had to be built first, and writing text failed in half precision and without a GPU."""
    assert journey.statuses == {"train": 0, "transfer": 0, "classify": 0, "generate": 0}
    assert "precision: fp16" in (journey.run_dir / "config.yaml").read_text()


def test_versions_no_private_part_of_torchs_data_loader_is_used(journey: Journey) -> None:
    """There, a subclass of DataLoader set a private attribute that the next torch had renamed: nothing loaded any more."""
    assert journey.statuses["train"] == journey.statuses["transfer"] == 0  # with a DataLoader that cannot be made
    assert len(list((journey.run_dir / "checkpoints").glob("step_*"))) > 0


def test_global_state_cudnn_stays_on(journey: Journey) -> None:
    """There, every program turned cuDNN off for its whole process."""
    assert torch.backends.cudnn.enabled and journey.cudnn


# ---- text --------------------------------------------------------------------------------------------------------------

# Shorter than a word, of one byte, and of scripts in which a character has two to four bytes.
SHORT = ["", "a", "!", "ok", "é", "não presta", "не плохо", "不错", "좋아요", "أعجبني", "अच्छा", "😀", "so-so"]


def test_text_of_any_language_and_length_has_a_feature_of_its_own() -> None:
    """There, texts with entities or accents, and texts below 64 characters, came out as zeros or not at all."""
    features = featurize(build(), SHORT, progress=False)
    assert np.isfinite(features).all() and (np.abs(features).max(axis=1) > 1e-3).all()
    apart = np.abs(features[:, None] - features[None]).max(axis=2)
    assert (apart + np.eye(len(SHORT)) > 1e-4).all()
    # Nothing is transliterated: an accent is not its letter, and an entity is what it stands for.
    plain, entity = featurize(build(), ["e", "&eacute;"], progress=False)
    assert np.abs(features[SHORT.index("é")] - plain).max() > 1e-4
    np.testing.assert_array_equal(entity, features[SHORT.index("é")])


# ---- which state is the feature ----------------------------------------------------------------------------------------


def after_bytes(model: MLSTM, data: bytes) -> np.ndarray:
    """The last layer's cell state after `data`, read one byte at a time."""
    state = None
    with torch.no_grad():
        for byte in data:
            _, state = model(torch.tensor([[byte]]), state)
    assert isinstance(state, RecurrentState)
    return state.cell[-1, 0].numpy()


def test_feature_is_the_state_after_the_trailing_space() -> None:
    """There, a length was passed one too small, so the state before the trailing space was taken."""
    model = build(num_layers=2)
    assert clean_review("Good.") == b"\n Good. "
    (feature,) = featurize(model, ["Good."], progress=False)
    np.testing.assert_allclose(feature, after_bytes(model, b"\n Good. "), atol=1e-5)
    for wrong in (b"\n Good.", b"Good. ", b"\n Good. \n"):
        assert np.abs(feature - after_bytes(model, wrong)).max() > 1e-3


def test_unit_index_stands_beside_the_state_it_counts_in(journey: Journey, tmp_path: Path) -> None:
    """There, two numbers went round for one unit, because nobody wrote down which vector was indexed."""
    parts = [
        word
        for name in ("train", "val", "test")
        for word in (f"--{name}", write_moods(tmp_path / f"{name}.csv", ["angry", "merry"]))
    ]
    argv = ["transfer", "--run-dir", journey.run_dir, *parts, "--state", "hidden", "--task", "two", "--no-cache"]
    assert call(*argv) == 0
    (path,) = (journey.run_dir / "results").glob("two-*.json")
    result = json.loads(path.read_text())
    assert result["features"]["state"] == "hidden"
    with path.with_suffix(".predictions.csv").open(newline="") as file:
        values = [float(row["unit"]) for row in csv.DictReader(file)]
    with (tmp_path / "test.csv").open(newline="") as file:
        texts = [row["sentence"] for row in csv.DictReader(file)]
    states = featurize(load_model(journey.run_dir).model, texts, state="hidden", progress=False)
    np.testing.assert_allclose(values, states[:, result["unit"]["index"]], atol=1e-5)
    about = json.loads((journey.run_dir / "probe" / "two.json").read_text())["about"]
    assert about["features"]["state"] == "hidden" and about["unit"]["index"] == result["unit"]["index"]


# ---- labels ------------------------------------------------------------------------------------------------------------


def test_labels_class_names_travel_with_the_probe(journey: Journey, tmp_path: Path) -> None:
    """There, the order of the emotions was a list in a script; with another order every label was wrong."""
    texts = [f"The lamp number {i} is {word}" for i in range(20) for word in MOODS.values()]
    expected = [name for _ in range(20) for name in MOODS]
    assert Classifier.load(journey.run_dir, "mood").predict(texts) == expected
    assert list((journey.run_dir / "results").glob("mood-*.predictions.csv"))  # without an option that asks for it
    # The same rows in another order name the same classes.
    for name in ("train", "val", "test"):
        lines = journey.files[name].read_text().splitlines()
        (tmp_path / f"{name}.csv").write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    parts = [word for name in ("train", "val", "test") for word in (f"--{name}", tmp_path / f"{name}.csv")]
    assert call("transfer", "--run-dir", journey.run_dir, *parts, "--task", "turned", "--no-cache") == 0
    assert Classifier.load(journey.run_dir, "turned").predict(texts) == expected


def test_thresholds_are_found_without_any_chance() -> None:
    """There, thresholds were moved at random by NumPy's global generator: two runs gave two answers."""
    generator = np.random.default_rng(0)
    truth = (generator.random((60, 3)) < 0.4).astype(int)
    probability = np.clip(0.5 * truth + 0.6 * generator.random((60, 3)), 0, 1)
    np.random.seed(1)
    first = search_thresholds(probability, truth, "mcc")
    state = np.random.get_state(legacy=False)["state"]  # type: ignore[index, call-overload]
    np.random.seed(1)
    untouched = np.random.get_state(legacy=False)["state"]  # type: ignore[index, call-overload]
    assert state["pos"] == untouched["pos"] and (state["key"] == untouched["key"]).all()
    np.random.seed(2)
    second = search_thresholds(probability, truth, "mcc")
    np.testing.assert_array_equal(first[0], second[0])
    assert first[1] == second[1]


# ---- weight norm -------------------------------------------------------------------------------------------------------


def test_weight_norm_is_a_pure_function_of_its_parameters(tmp_path: Path) -> None:
    """There, each forward pass wrote the normalised weights over the parameters, and saving took the norm off a model
    that was still in use."""
    model = build(num_layers=2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    featurize(model, ["good", "bad"], progress=False)
    decode(model, [b"\n go"], 3)
    tokens = torch.tensor([list(b"\n good ")])
    logits, _ = model(tokens)
    logits.sum().backward()
    save_checkpoint(tmp_path, Checkpoint(model.state_dict(), {"samples": 1, "tokens": 8}), {})
    after = model.state_dict()
    assert set(after) == set(before) and all(torch.equal(after[name], before[name]) for name in before)
    assert torch.equal(model(tokens)[0], logits)


def test_weight_norm_survives_copies_moves_and_new_weights() -> None:
    """There, a recurrent layer kept a flattened copy of its weights, which weight norm replaced behind its back."""
    tokens = torch.tensor([list(b"\n good ")])
    model, other = build(0), build(1)
    with torch.no_grad():
        wanted = other(tokens)[0]
        assert not torch.allclose(model(tokens)[0], wanted)  # whatever is kept was kept before the weights change
        featurize(model, ["good"], progress=False)
        model.load_state_dict(other.state_dict())
        assert torch.equal(model(tokens)[0], wanted)
        torch.testing.assert_close(copy.deepcopy(model).double()(tokens)[0], wanted.double(), atol=1e-4, rtol=1e-4)
        for parameter in model.parameters():
            parameter.mul_(1.5)
        assert not torch.allclose(model(tokens)[0], wanted)


# ---- loss and log ------------------------------------------------------------------------------------------------------


class Table(nn.Module):
    """Logits that depend on the byte alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(256, 256, dtype=torch.float64))

    def forward(self, tokens: Tensor, state: None, reset: Tensor) -> tuple[Tensor, None]:
        return self.weight[tokens.long()], None


def test_loss_of_a_padded_batch_is_the_mean_over_its_real_targets() -> None:
    """There, the mean was multiplied once more by the share of real targets, so padded batches counted too little."""
    generator = np.random.default_rng(0)
    tokens = torch.from_numpy(generator.integers(0, 256, (3, 9)).astype(np.uint8))
    mask = torch.arange(8)[None] < torch.tensor([[8], [5], [1]])
    model, none = Table(), torch.zeros(3, 8, dtype=torch.bool)
    output = sequence_loss(model, tokens, none, mask, None)
    (output.loss_sum / output.num_targets).backward()
    logits = model.weight.detach().numpy()[tokens[:, :-1].numpy()]
    share = np.exp(logits - logits.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    nats = -np.log(np.take_along_axis(share, tokens[:, 1:, None].numpy().astype(int), axis=2))[..., 0]
    real = [nats[row, column] for row, length in enumerate((8, 5, 1)) for column in range(length)]
    assert output.num_targets == 14
    assert float(output.loss_sum.detach()) / output.num_targets == pytest.approx(np.mean(real), rel=1e-5)
    # Four more columns of padding change neither the mean nor the gradient.
    assert model.weight.grad is not None
    gradient, model.weight.grad = model.weight.grad, None
    wide = torch.cat([tokens, torch.full((3, 4), 7, dtype=torch.uint8)], dim=1)
    padding = torch.zeros(3, 4, dtype=torch.bool)
    padded = sequence_loss(model, wide, torch.cat([none, padding], 1), torch.cat([mask, padding], 1), None)
    (padded.loss_sum / padded.num_targets).backward()
    assert float(padded.loss_sum.detach()) == pytest.approx(float(output.loss_sum.detach()), rel=1e-6)
    torch.testing.assert_close(model.weight.grad, gradient)


def test_log_the_last_line_is_the_mean_of_its_own_steps(journey: Journey, tmp_path: Path) -> None:
    """There, the sum of a last, shorter interval was divided by the full interval: the final loss looked too good."""
    assert train(journey.run_dir.parent / "reviews.jsonl", tmp_path / "each", interval=8) == 0
    each = {row["samples"]: row["loss"] for row in read_metrics(tmp_path / "each") if "lr" in row}
    lines = {row["samples"]: row["loss"] for row in read_metrics(journey.run_dir) if "lr" in row}
    assert list(each) == [8, 16, 24, 32, 40] and list(lines) == [24, 40]
    assert lines[24] == pytest.approx((each[8] + each[16] + each[24]) / 3, rel=1e-6)
    assert lines[40] == pytest.approx((each[32] + each[40]) / 2, rel=1e-6)


# ---- the page ----------------------------------------------------------------------------------------------------------


def rows_of_page(text: str) -> list[list[str]]:
    """Cells of all rows of all tables, without their heads; the second cell is the source."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    bodies = [line for line, after in zip(lines, [*lines[1:], ""]) if not after.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in bodies if not line.startswith("|---")]


@cache
def functions_of(file: Path) -> frozenset[str]:
    """Functions at the top of a test file; none where there is no such file."""
    body = ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else []
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef))


def missing_tests(text: str) -> list[str]:
    """Tests named in a page that no file holds."""
    named = re.findall(r"`([^`\s]+\.py)::(\w+)`", text)
    return [f"{path}::{function}" for path, function in named if function not in functions_of(REPO / "tests" / path)]


def sources_of(path: Path, repo: str | None = None) -> Counter[str]:
    """Sources as the page spells them, from a table of problems."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if repo is None:
        return Counter(f"{row['repo']} {'code' if row['issue'] == '-' else row['issue']}" for row in rows)
    return Counter(f"{repo} {row['id']}" for row in rows)


def test_page_every_test_it_names_exists_and_every_defect_has_one() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert missing_tests(text) == []
    rows = rows_of_page(text)
    assert {len(row) for row in rows} == {3, 4} and all(all(row) for row in rows)
    assert not [row for row in rows if len(row) == 4 and "::test_" not in row[3]]
    assert not [row for row in rows if len(row) == 3 and "::" in row[2]]


def test_page_of_tests_the_check_sees_mistakes() -> None:
    wrong = (
        "`unit/test_predecessors.py::test_gone` `unit/test_gone.py::test_x` `unit/test_layout.py::test_import_is_cheap`"
    )
    assert missing_tests(wrong) == ["unit/test_predecessors.py::test_gone", "unit/test_gone.py::test_x"]
    assert rows_of_page("| a | b |\n|---|---|\n| c | d |\n\n| e |\n|---|\n| f |\n") == [["c", "d"], ["f"]]


def test_page_has_every_problem_of_the_tables_once(facts: Path) -> None:
    found = Counter(row[1] for row in rows_of_page(PAGE.read_text(encoding="utf-8")))
    assert found == sources_of(facts / "pain_points.csv") + sources_of(facts / "nv_code_bugs.csv", "code")
