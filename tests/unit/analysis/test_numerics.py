"""The tables of docs/numerics.md from run folders whose numbers are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bigbatch.analysis.figures import numerics
from bigbatch.analysis.figures.numerics import Plan
from bigbatch.models.config import LSTMConfig, MLSTMConfig
from bigbatch.models.flops import parameters, training_bytes
from bigbatch.scripts.figures import main
from bigbatch.training.engine import Diverged


def make_run(folder: Path, heldout: dict[int, float], skipped: int = 0, scale: float = 1.0, lr: float = 0.1) -> None:
    folder.mkdir(parents=True)
    rows: list[dict] = []
    for samples, bpc in heldout.items():
        rows.append(
            {
                "samples": samples,
                "step": samples // 10,
                "bpc": bpc + 0.1,
                "lr": lr,
                "loss_scale": scale,
                "skipped_steps": skipped,
            }
        )
        rows.append({"event": "eval", "samples": samples, "bpc": bpc, "num_targets": 7777})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Three seeds; the early validation, at 20 % of the run, differs wildly and must not count."""
    plan = Plan(tmp_path, ("reviews.jsonl",), samples=100, hidden_size=8)
    for seed, shift in zip(plan.seeds, (0.001, 0.002, 0.003)):
        make_run(tmp_path / f"fp32-seed{seed}", {20: 5.0, 50: 3.0, 100: 2.0})
        make_run(tmp_path / f"fp16-seed{seed}", {20: 6.0, 50: 3.0, 100: 2.0 + 2 * shift}, skipped=seed, scale=2.0**seed)
    make_run(tmp_path / "ranks2", {20: 5.0, 50: 3.00001, 100: 2.0})
    make_run(tmp_path / "ranks4", {20: 5.0, 50: 3.0, 100: 2.0}, lr=0.2)
    return plan


def test_the_difference_is_paired_and_starts_at_thirty_percent(plan: Plan) -> None:
    means, mean, spread = numerics.paired_difference(plan)
    assert means == pytest.approx([0.001, 0.002, 0.003]) and mean == pytest.approx(0.002)
    # Student's t with two degrees of freedom: 4.303 * 0.001 / sqrt(3).
    assert spread == pytest.approx(0.0024843, rel=1e-3)


def test_the_table_says_whether_the_claim_holds(plan: Plan) -> None:
    text = numerics.precision_table(plan)
    assert "| 2 | 2.0000 | 2.0040 | +0.0020 | 10 | 2 | 4 |" in text
    assert (
        "Mean over 3 seeds: +0.0020 BPC, 95 % interval [-0.0005, +0.0045]" in text and "which is inside +-0.005" in text
    )
    metrics = plan.root / "fp16-seed1" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("2.002", "2.102"))
    assert "which is **not** inside +-0.005" in numerics.precision_table(plan)


def test_runs_validated_at_other_samples_are_not_compared(plan: Plan) -> None:
    metrics = plan.root / "fp16-seed3" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"samples": 50', '"samples": 51'))
    with pytest.raises(ValueError, match=r"seed 3: the runs in .* were validated at different samples"):
        numerics.paired_difference(plan)


def test_ranks_are_compared_line_by_line(plan: Plan) -> None:
    lines = numerics.ranks_table(plan).splitlines()
    assert lines[2:] == [
        "| 1 | 2.0000 | 0.00000 | yes |",
        "| 2 | 2.0000 | 0.00001 | yes |",
        "| 4 | 2.0000 | 0.00000 | NO |",
    ]


def test_the_picture_shows_every_seed(plan: Plan, tmp_path: Path) -> None:
    assert numerics.plot(plan, tmp_path / "out" / "a.png").read_bytes().startswith(b"\x89PNG")


def test_only_what_is_missing_is_run_and_the_bad_run_leaves_its_last_words(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numerics, "open_or_prepare", lambda *arguments, **options: None)
    monkeypatch.setattr(numerics, "settle_config", lambda config: config)
    started: list[str] = []

    def train(config) -> int:
        name = Path(config.run_dir).name
        started.append(name)
        if name == "diverges":
            Path(config.run_dir).mkdir()
            raise Diverged("the gradients were not finite")
        return 0

    monkeypatch.setattr(numerics, "train", train)
    (plan.root / "fp32-seed2" / "result.json").write_text('{"train": {"samples": 100}}')
    numerics.run(plan)
    assert started == [
        "fp32-seed1",
        "fp16-seed1",
        "fp16-seed2",
        "fp32-seed3",
        "fp16-seed3",
        "ranks2",
        "ranks4",
        "diverges",
    ]
    assert (plan.root / "diverges" / "ended.txt").read_text() == "the gradients were not finite\n"
    (plan.root / "diverges" / "ended.txt").unlink()
    monkeypatch.setattr(numerics, "train", lambda config: 0)
    with pytest.raises(ValueError, match=r"did not diverge at lr 10000"):
        numerics.run(plan)


def test_bytes_in_closed_form() -> None:
    config = MLSTMConfig(hidden_size=16, embedding_size=8, num_layers=2)
    size = 4 * parameters(config)
    assert training_bytes(config, 10, "fp32") == {
        "weights": size, "gradients": size, "optimizer": 2 * size, "state": 2 * 2 * 10 * 16 * 4, "copies": 0
    }  # fmt: skip
    half = training_bytes(LSTMConfig(hidden_size=16), 10, "fp16", moments=1, shards=4)
    assert half["state"] == 10 * 16 * (2 + 4) and half["optimizer"] == half["weights"] == parameters(
        LSTMConfig(hidden_size=16)
    )


@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"weight_norm": False}], ids=str)
def test_gradients_and_copies_of_a_pass_have_the_size_of_the_closed_form(options: dict) -> None:
    model = MLSTMConfig(hidden_size=16, embedding_size=8, **options)
    config = replace(Plan(Path("x"), ("y",)).config("a", "fp16", 1), model=model)
    expected = training_bytes(model, 1, "fp16")
    assert numerics._pass_bytes(config) == (expected["gradients"], expected["copies"])


def test_the_command_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BIGBATCH_CORPORA", raising=False)
    with pytest.raises(ValueError, match=r"no text: set BIGBATCH_CORPORA to a folder that holds amazon/"):
        main(["numerics"])
    with pytest.raises(ValueError, match=r"--samples is 10: ten validations need at least 640"):
        main(["numerics", "--data", "x", "--samples", "10"])
