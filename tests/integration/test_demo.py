"""`bigbatch demo` at a hundredth of its length: every step of it runs and leaves what it promises."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from bigbatch.scripts import demo


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "run"
    assert demo.main(["--run-dir", str(folder), "--samples", "1600", "--nproc", "1"]) == 0
    return folder


def test_result_has_every_promised_number(run_dir: Path) -> None:
    result = json.loads((run_dir / "result.json").read_text())
    for key in ("bpc", "bpc_gzip", "bpc_5gram"):
        assert 0 < result[key] < 8
    assert result["bpc_bytes"] >= 500_000
    for key in ("probe", "unit", "baseline_majority", "baseline_tfidf"):
        row = result[key]
        assert 0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1
        assert row["n"] >= 2000
    assert 0 <= result["unit"]["index"] < 128


def test_run_folder_holds_what_was_promised(run_dir: Path) -> None:
    for name in ("config.yaml", "metrics.jsonl", "report.html", "plots/training.png", "plots/precision.png"):
        assert (run_dir / name).stat().st_size > 0
    assert list((run_dir / "checkpoints").glob("step_*/manifest.json"))
    assert {p.name for p in (run_dir / "plots").glob("*.png")} >= {"demo-unit-histogram.png", "demo-probe-weights.png"}
    for name in ("lm.jsonl", "train.csv", "val.csv", "test.csv"):
        assert (run_dir / "data" / "demo" / name).is_file()


def test_fp16_run_moved_its_loss_scale(run_dir: Path) -> None:
    rows = [json.loads(line) for line in (run_dir / "precision-fp16" / "metrics.jsonl").read_text().splitlines()]
    assert len({row["loss_scale"] for row in rows if "loss_scale" in row}) > 1


def test_report_needs_no_network(run_dir: Path) -> None:
    page = (run_dir / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)[^"']+""", page)
    assert "data:image/png;base64," in page


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1234])
def test_the_whole_demo_keeps_its_promises(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Three minutes on two cores: the numbers that the README shows are reached again."""
    folder = tmp_path_factory.mktemp("whole-demo") / "run"
    assert demo.main(["--run-dir", str(folder), "--seed", str(seed)]) == 0
    result = json.loads((folder / "result.json").read_text())
    assert result["bpc_bytes"] >= 500_000 and result["bpc"] < min(result["bpc_gzip"], result["bpc_5gram"])
    assert result["probe"]["accuracy"] >= 0.90 and result["probe"]["n"] == 2000
    assert result["probe_minus_tfidf"]["low"] > 0
    # The task proves nothing where words alone solve it.
    assert 0.55 <= result["baseline_tfidf"]["accuracy"] <= 0.85
