"""Cluster and model files: what is read, and what each mistake says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from bigbatch.analysis.clusters import FOLDER, load_cluster
from bigbatch.analysis.workloads import TransformerWorkload, load_workload
from bigbatch.scripts.plan import main

ONE = FOLDER / "dgx1v-infiniband.yaml"


def write(path: Path, **changes: object) -> Path:
    content = {**yaml.safe_load(ONE.read_text(encoding="utf-8")), **changes}
    path.write_text(yaml.safe_dump({key: value for key, value in content.items() if value != "drop"}), encoding="utf-8")
    return path


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_cluster_file_is_read(path: Path) -> None:
    cluster = load_cluster(path.stem)
    assert cluster.devices == cluster.nodes * cluster.devices_per_node and cluster.rates
    assert all(rate.source and rate.tflops < cluster.peak_tflops[rate.precision] for rate in cluster.rates)


def test_links_are_shared_by_the_devices_of_a_node() -> None:
    cluster = load_cluster("dgx1v-infiniband")
    assert cluster.inter.bytes_per_second == 25e9 / 8 and cluster.intra.bytes_per_second == 150e9
    assert cluster.resized(1280).nodes == 160 and cluster.resized(4).nodes == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": "drop"}, r"c\.yaml: nodes is missing"),
        ({"colour": 1}, r"c\.yaml: colour is unknown"),
        ({"nodes": 0}, r"c: nodes is 0: it must be a positive number"),
        ({"peak_tflops": {"fp8": 1}}, r"c\.yaml: peak_tflops must map fp32, tf32, fp16, bf16 to numbers"),
        (
            {"rates": [{"family": "gpt"}]},
            r"c\.yaml: each of `rates` needs family, precision, tflops, matrix_size, source",
        ),
    ],
)
def test_wrong_cluster_files(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_cluster(write(tmp_path / "c.yaml", **changes))


def test_other_mistakes_with_clusters(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"there is no cluster file .*mine\.yaml: name a YAML file, or one of dgx-a100, "
    ):
        load_cluster("mine")
    (tmp_path / "a.yaml").write_text("a: [")
    with pytest.raises(ValueError, match=r"a\.yaml is no YAML: "):
        load_cluster(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").write_text("5")
    with pytest.raises(ValueError, match=r"b\.yaml is no cluster: it must hold the fields"):
        load_cluster(tmp_path / "b.yaml")
    with pytest.raises(ValueError, match=r"12 devices do not fill nodes of 8 \(dgx1v-infiniband\): take a multiple"):
        load_cluster(ONE).resized(12)
    with pytest.raises(
        ValueError,
        match=r"dgx1v-infiniband has no measured rate of gpt in fp16 \(it has: mlstm in fp16, .*give --tflops",
    ):
        load_cluster(ONE).rate("gpt", "fp16")


def test_models_from_files(tmp_path: Path) -> None:
    assert load_workload("configs/mlstm/demo.yaml").seq_length == 32
    path = tmp_path / "mine.yaml"
    path.write_text("model: {kind: gpt, hidden_size: 64, num_layers: 2, num_attention_heads: 4, seq_length: 128}")
    work = load_workload(str(path))
    assert isinstance(work, TransformerWorkload) and (work.name, work.family, work.seq_length) == ("mine", "gpt", 128)
    path.write_text("model: {kind: gpt, hidden_size: 64}")
    with pytest.raises(ValueError, match=r"mine\.yaml: the fields of `model` are wrong: .*num_layers"):
        load_workload(str(path))
    path.write_text("model: {kind: cnn}")
    with pytest.raises(ValueError, match=r"model\.kind is 'cnn': the planner knows mlstm, lstm, gpt and bert"):
        load_workload(str(path))
    path.write_text("model: {kind: bert, hidden_size: 0, num_layers: 2, num_attention_heads: 4}")
    with pytest.raises(ValueError, match=r"mine: hidden_size is 0: it must be a whole number of at least 1"):
        load_workload(str(path))
    path.write_text("a: [")
    with pytest.raises(ValueError, match=r"mine\.yaml is no YAML"):
        load_workload(str(path))
    with pytest.raises(ValueError, match=r"there is no model 'x': name a YAML file with `model:`, or one of mlstm-256"):
        load_workload("x")


CALL = ["--model", "mlstm-4096", "--cluster", "dgx1v-infiniband", "--global-batch-size", "32768"]


def test_the_command_ranks_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CALL, "--tokens", "38.27e9", "--top", "2"]) == 0
    out = capsys.readouterr().out
    table = [line for line in out.splitlines() if line.startswith("| 128 ")]
    assert len(table) == 2 and table[0].startswith("| 128 | 1 | 1 | 256 | no |")
    seconds, hours, price = (float(table[0].split("|")[at].replace(",", "")) for at in (6, 12, 13))
    assert hours == pytest.approx(38.27e9 / (32768 * 256) * seconds / 3600, abs=0.01)
    assert price == pytest.approx(hours * 128 * 3.06, rel=0.01)


def test_a_given_layout_rate_and_price(capsys: pytest.CaptureFixture[str]) -> None:
    more = [
        "--devices",
        "8",
        "--micro-batch-size",
        "64",
        "--recompute",
        "no",
        "--price",
        "1",
        "--tflops",
        "50",
        "--tflops-size",
        "64",
    ]
    assert main([*CALL, *more, "--tokens", "32768e3"]) == 0
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith("| 8 ")]
    assert len(lines) == 1 and lines[0].startswith("| 8 | 1 | 1 | 64 | no |")
    # All of a node at 50 TFLOP/s: 32,768 x 256 characters of 517 MFLOP.
    assert float(lines[0].split("|")[6]) == pytest.approx(32768 * 256 * 517.5e6 / 8 / 50e12, rel=0.01)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], r"--model, --cluster, --global-batch-size missing: a plan needs a model, a cluster and a global batch"),
        ([*CALL, "--devices", "0"], r"--devices is 0: it must be positive"),
        ([*CALL, "--micro-batch-size", "3"], r"no layout that uses all devices and divides the batch has --micro-batch-size 3"),
        ([*CALL, "--precision", "bf16"], r"dgx1v-infiniband knows no bf16: its file has fp32, fp16"),
        ([*CALL, "--precision", "tf32"], r"dgx1v-infiniband has no measured rate of mlstm in tf32"),
        ([*CALL, "--tflops", "-1"], r"--tflops -1\.0 at size \d+: both must be positive"),
    ],
)  # fmt: skip
def test_wrong_calls(argv: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        main(argv)


def test_backtest_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--backtest"]) == 0
    out = capsys.readouterr().out
    assert "| mtnlg_throughput | MT-NLG 530B | 2240 | 60.1 s |" in out and "## Ten times larger" in out
