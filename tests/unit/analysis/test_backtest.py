"""The back-test: the fitted numbers can be found again, the tables are those published, the stated errors hold."""

from __future__ import annotations

import csv
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from bigbatch.analysis import backtest, backtest_rows
from bigbatch.analysis.backtest_rows import BERT_PHASES, Row
from bigbatch.analysis.clusters import load_cluster
from bigbatch.analysis.extrapolation import CASES, larger, ninth_decile, spread
from bigbatch.analysis.fitted import FITTED, LEFT_OUT, LEFT_OUT_FAMILY
from bigbatch.analysis.published_tables import FOLDER, number, read_published
from bigbatch.analysis.scaling import Parameters
from bigbatch.analysis.workloads import WORKLOADS, bert_large, mlstm


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return backtest_rows.all_rows()


def test_stored_numbers_are_those_that_a_fit_finds(rows: list[Row]) -> None:
    targets = [row for row in rows if row.use == "target"]
    assert np.allclose(astuple(backtest.fit(targets)), astuple(FITTED), rtol=0.02, atol=0.002)
    assert set(LEFT_OUT) == {row.table for row in targets}
    rest = [row for row in targets if row.table != "bert_throughput_scaling"]
    assert np.allclose(astuple(backtest.fit(rest)), astuple(LEFT_OUT["bert_throughput_scaling"]), rtol=0.02, atol=0.002)


def test_stored_numbers_without_a_line_of_work(rows: list[Row]) -> None:
    targets = [row for row in rows if row.use == "target"]
    rest = [row for row in targets if not row.table.startswith("megatron")]
    assert np.allclose(astuple(backtest.fit(rest)), astuple(LEFT_OUT_FAMILY["megatron"]), rtol=0.02, atol=0.002)
    assert {row.table for row in targets if not row.table.startswith(tuple(LEFT_OUT_FAMILY))} == {"mtnlg_throughput"}


def test_a_fit_recovers_numbers_that_made_the_rows(rows: list[Row]) -> None:
    truth = Parameters(0.9, 0.8, 0.5, 0.02, 0.4)
    made = [Row(row.table, row.name, row.devices, row.unit, row.predict(truth), row.predict)
            for row in rows if row.use == "target"]  # fmt: skip
    assert np.allclose(astuple(backtest.fit(made)), astuple(truth), rtol=0.02)


def test_target_is_met_with_no_more_than_six_numbers(rows: list[Row]) -> None:
    assert len(astuple(FITTED)) <= 6
    total = backtest.scores([row for row in rows if row.use == "target"])[-1]
    assert total.rows == 65
    assert total.median <= 0.15 and total.largest <= 0.35
    assert total.left_out_median <= 0.15 and total.left_out_largest <= 0.35
    assert (
        "): met with 7.6 % and 32.9 %. Counted as a ratio, whichever way it is off, the largest is 36.8 %"
        in backtest.score_table()
    )


def test_errors_and_scores_are_those_of_the_definition() -> None:
    rows = [Row("mtnlg_throughput", str(p), 1, "s", p, lambda fitted: 12.0) for p in (10.0, 12.0, 16.0)]
    assert backtest.errors(rows, FITTED) == pytest.approx([0.2, 0.0, -0.25])
    score = backtest.scores(rows)[0]
    assert (score.rows, score.median, score.largest) == (3, pytest.approx(0.2), pytest.approx(0.25))


def test_every_named_row_is_there(rows: list[Row]) -> None:
    targets = [row for row in rows if row.use == "target"]
    mlstm_rows = {(row.name, row.devices) for row in targets if row.table == "nv1808_gpu_scaling"}
    names = ("4k no infiniband", "4k infiniband", "8k infiniband")
    assert mlstm_rows == {(name, gpus) for name in names for gpus in (16, 32, 64, 128)}
    assert {row.devices for row in targets if row.name == "MT-NLG 530B"} == {2240, 2800, 3360}
    assert len([row for row in targets if row.name == "1.2B strong scaling"]) == 3
    assert all(row.note for row in rows if row.use == "excluded")
    # Every row of the tables is predicted, gave a rate, or is listed with a reason.
    gave_a_rate = 2
    assert len([r for r in rows if r.table == "bert_time_vs_gpus"]) + gave_a_rate == len(
        read_published("bert_time_vs_gpus")
    )


def test_rates_in_cluster_files_follow_from_the_tables() -> None:
    (derived,) = [row for row in read_published("derived_throughput") if row["setup"].startswith("128 GPUs")]
    (speedup,) = [
        r for r in read_published("nv1808_gpu_scaling") if r["series"] == "4k_infiniband" and r["gpus"] == "128"
    ]
    one = float(derived["chars_per_s_total"]) / float(speedup["effective_speedup_approx"])
    flops = mlstm(4096).flops_per_token(False)
    cluster = load_cluster("dgx1v-infiniband")
    assert cluster.rate("mlstm", "fp16").tflops == pytest.approx(one * flops / 1e12, rel=0.002)
    assert cluster.rate("mlstm", "fp32").tflops == pytest.approx(one / 4.2 * flops / 1e12, rel=0.002)
    work = sum(steps * batch * s * bert_large(s).flops_per_token(False) for s, (steps, batch) in BERT_PHASES.items())
    speed = {(r["system"].split()[1], r["seq_len"]): float(r["sequences_per_s"])
             for r in read_published("bert_throughput_scaling") if r["nodes"] == "1"}  # fmt: skip
    for name, key, devices in (("dgx2h", "V100-32G", 16), ("dgx-a100", "A100-80G", 8)):
        seconds = sum(steps * batch / speed[key, str(s)] for s, (steps, batch) in BERT_PHASES.items())
        assert load_cluster(name).rate("bert", "fp16").tflops == pytest.approx(
            work / seconds / devices / 1e12, rel=0.002
        )
    hours = {r["system"]: float(r["hours"]) for r in read_published("bert_time_vs_gpus") if r["hours"]}
    assert cluster.rate("bert", "fp16").tflops == pytest.approx(work / (hours["1x DGX-1"] * 3600) / 8 / 1e12, rel=0.002)
    deepspeed = load_cluster("dgx2h").rate("bert-deepspeed", "fp16").tflops
    assert deepspeed == pytest.approx(work / (hours["DeepSpeed 1 node"] * 3600) / 16 / 1e12, rel=0.002)
    table = {r["case"] + r["series"]: float(r["tflops_per_gpu"]) for r in read_published("megatron_weak_scaling")}
    assert load_cluster("dgx2h").rate("gpt", "fp16").tflops == table["1B2020 V100 DGX-2 MP only"]
    assert load_cluster("dgx-a100").rate("gpt", "bf16").tflops == table["1B2020 A100 MP only"]
    assert load_cluster("dgx-h100").rate("gpt", "bf16").tflops == table["1.7Bcurrent H100"]


def test_phases_of_bert_are_the_recipe() -> None:
    recipe = [r for r in read_published("bert_large_recipe") if r["phase"].startswith("NVIDIA")]
    assert {int(r["seq_len"]): (int(r["steps"]), int(r["global_batch"])) for r in recipe} == BERT_PHASES


def test_copies_are_the_published_tables(facts: Path) -> None:
    for path in FOLDER.glob("*.csv"):
        with (
            path.open(encoding="utf-8", newline="") as ours,
            (facts / path.name).open(encoding="utf-8", newline="") as theirs,
        ):
            a, b = list(csv.DictReader(ours)), list(csv.DictReader(theirs))
        b = [
            row for row in b if not row.get("wanted", "").startswith("OpenAI large weight arrays")
        ]  # no number of a figure
        for row in (*a, *b):
            row.pop("source")
        assert a == b, path.name


def test_tables_name_their_sources_and_keep_absent_cells_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(read_published(path.stem) for path in FOLDER.glob("*.csv"))
    assert [number(cell) for cell in ("", None, "not found", "not found (no script)", "not derivable", "1,000", "5e-4")] == [
        None, None, None, None, None, 1000.0, 5e-4]  # fmt: skip
    with pytest.raises(ValueError, match=r"there is no table 'nothing' of published numbers; tables: bert_"):
        read_published("nothing")
    (tmp_path / "bad.csv").write_text("a,source\n1,paper\n2,\n")
    monkeypatch.setattr("bigbatch.analysis.published_tables.FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"bad\.csv, line 3: no source"):
        read_published("bad")


def test_ten_times_larger_carries_its_uncertainty() -> None:
    case = CASES[-1]
    estimate, low, high = spread(WORKLOADS[case.model], load_cluster(case.cluster), case.layout, case.precision)
    assert low < estimate.step_seconds < high
    targets = backtest.targets()
    off = [abs(np.log(row.predict(LEFT_OUT[row.table]) / row.published)) for row in targets]
    assert ninth_decile() == pytest.approx(np.quantile(off, 0.9)) and 0.15 < ninth_decile() < 0.35
    lines = larger().splitlines()
    assert len(lines) == 2 + 2 * len(CASES)
    ranges = [[float(x.replace(",", "")) for x in line.split("|")[5].split(" to ")] for line in lines[2:]]
    wide = [[float(x.replace(",", "")) for x in line.split("|")[6].split(" to ")] for line in lines[2:]]
    assert all(w[0] < r[0] <= r[1] < w[1] for r, w in zip(ranges, wide))


def test_the_page_shows_what_the_command_prints(repo: Path) -> None:
    page = (repo / "docs" / "scaling.md").read_text(encoding="utf-8")
    for piece in (*backtest.report().split("\n\n"), larger()):
        assert piece in page
    stored = (repo / "docs" / "figures" / "scaling-errors.csv").read_text(encoding="utf-8")
    drawn = {(row["what"], row["gpus"]): float(row["error"]) for row in csv.DictReader(stored.splitlines())}
    assert len(drawn) > 60
    for row in backtest.targets():
        if row.table == "mtnlg_throughput":
            assert drawn[row.name, str(row.devices)] == pytest.approx(backtest.errors([row], FITTED)[0])
