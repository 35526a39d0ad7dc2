"""The scaling model against arithmetic by hand, other closed forms, and its own limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bigbatch.analysis import scaling
from bigbatch.analysis.clusters import Cluster, Rate, load_cluster
from bigbatch.analysis.collectives import ring_all_reduce
from bigbatch.analysis.fitted import FITTED
from bigbatch.analysis.scaling import Layout, Parameters, predict
from bigbatch.analysis.workloads import WORKLOADS, RecurrentWorkload, TransformerWorkload, mlstm
from bigbatch.models.config import MLSTMConfig
from bigbatch.models.flops import activation_bytes, training_bytes

IDEAL = Parameters(0.0, 1.0, 1.0, 0.0, 0.0)


@pytest.fixture
def cluster() -> Cluster:
    """Round numbers: 4 nodes of 4 devices of 100 TFLOP/s peak and 50 measured; balance is 100 rows in fp16."""
    return Cluster(
        name="round", nodes=4, devices_per_node=4, device="x", memory_gib=16, memory_gb_per_second=1000,
        peak_tflops={"fp16": 100.0}, intra_gb_per_second=100, intra_latency_us=1, inter_gb_per_second=4,
        inter_latency_us=10, watts_per_node=2000, price_per_device_hour=2.0,
        rates=(Rate("gpt", "fp16", 50.0, 256, "made up"), Rate("mlstm", "fp16", 50.0, 100, "made up")),
    )  # fmt: skip


@pytest.fixture
def work() -> TransformerWorkload:
    return TransformerWorkload("small", "gpt", 1024, 8, 16, 32000, 512)


def test_one_device_runs_at_the_measured_rate(cluster: Cluster, work: TransformerWorkload) -> None:
    estimate = predict(work, cluster, Layout(1, 1, 1, 4, 4), "fp16", IDEAL)
    flops = 4 * 512 * 6 * (8 * (12 * 1024**2 + 2 * 512 * 1024) + 32000 * 1024)
    assert estimate.compute_seconds == pytest.approx(flops / 50e12)
    assert estimate.step_seconds == pytest.approx(flops / 50e12 + work.parameters * 30 / 1e12)
    assert estimate.exchange_seconds == estimate.tensor_seconds == estimate.bubble_seconds == estimate.wait_seconds == 0
    assert estimate.model_utilisation == pytest.approx(flops / estimate.step_seconds / 100e12)
    assert estimate.tokens_per_second == pytest.approx(4 * 512 / estimate.step_seconds)


def test_small_matrices_are_slow(cluster: Cluster) -> None:
    # One parameter, half_size 1: 100 rows run at half, 50 at a third of the rate they tend to; measured at 100 rows.
    slow = predict(mlstm(256), cluster, Layout(1, 1, 1, 50, 50), "fp16", replace(IDEAL, half_size=1.0))
    ideal = predict(mlstm(256), cluster, Layout(1, 1, 1, 50, 50), "fp16", IDEAL)
    assert slow.compute_seconds / ideal.compute_seconds == pytest.approx((1 / 2) / (1 / 3))


def test_parts_of_a_parallel_step(cluster: Cluster, work: TransformerWorkload) -> None:
    layout = Layout(2, 4, 2, 2, 16, recompute=True)
    estimate = predict(work, cluster, layout, "fp16", replace(IDEAL, straggler=0.1))
    assert layout.grad_accum_steps == 4 and layout.devices == 16
    flops = 16 * 512 * (8 * 8 * (12 * 1024**2 + 2 * 512 * 1024) + 6 * 32000 * 1024)
    message = 2 * 512 * 1024 * 2
    tensor = 6 * 8 / 2 * 4 * ring_all_reduce(message, 4, cluster.intra)
    assert estimate.compute_seconds == pytest.approx(flops / 16 / 50e12)
    assert estimate.tensor_seconds == pytest.approx(tensor)
    assert estimate.bubble_seconds == pytest.approx((flops / 16 / 50e12 + tensor) / 4)  # (p - 1) / m
    # Two ranks on two nodes; each of four tensor ranks of a node has a quarter of its 4 GB/s.
    assert estimate.exchange_seconds == pytest.approx(work.parameters / 8 * 2 / 1e9 + 2 * 1e-5)
    assert estimate.pipeline_seconds == pytest.approx(2 * 4 * (message / 4 / 1e9 + 1e-5))
    assert estimate.wait_seconds == pytest.approx(0.1 * 2 * (flops / 16 / 50e12 + tensor))


def test_exchange_hides_behind_the_backward_pass_and_no_further(cluster: Cluster, work: TransformerWorkload) -> None:
    full = replace(IDEAL, overlap=1.0)
    bare = predict(work, cluster, Layout(16, 1, 1, 8, 128), "fp16", IDEAL)
    hidden = predict(work, cluster, Layout(16, 1, 1, 8, 128), "fp16", full)
    assert bare.exchange_seconds - hidden.exchange_seconds == pytest.approx(2 / 3 * bare.compute_seconds)
    long = predict(work, cluster, Layout(16, 1, 1, 512, 8192), "fp16", full)
    assert long.exchange_seconds == pytest.approx(bare.exchange_seconds / 8)  # the last of eight layers has no cover
    one_layer = predict(mlstm(256), cluster, Layout(16, 1, 1, 8, 128), "fp16", full)
    assert (
        one_layer.exchange_seconds
        == predict(mlstm(256), cluster, Layout(16, 1, 1, 8, 128), "fp16", IDEAL).exchange_seconds
        > 0
    )


def test_memory_of_a_recurrent_model_is_that_of_the_checked_forms(cluster: Cluster) -> None:
    config = MLSTMConfig(hidden_size=128)
    memory = predict(RecurrentWorkload("x", config, 64), cluster, Layout(2, 1, 1, 8, 32), "fp16", IDEAL).memory
    held = training_bytes(config, 16, "fp16")  # two micro-batches of eight lanes
    assert {key: memory[key] for key in held} == held
    assert memory["activations"] == sum(activation_bytes(config, 8, 64, "fp16").values())


def test_memory_of_a_transformer(work: TransformerWorkload) -> None:
    plain = work.memory(4, 8, 2, 4, "fp16", False)
    assert sum(plain[k] for k in ("weights", "gradients", "optimizer", "copies")) == pytest.approx(
        18 * work.parameters / 8
    )
    rows = 4 * 512 * 1024
    assert plain["activations"] == pytest.approx(4 * 8 / 4 * rows * (10 + 24 / 2 + 5 * 16 * 512 / (1024 * 2)))
    assert work.memory(4, 8, 2, 4, "fp16", True)["activations"] < plain["activations"]
    assert plain["weights"] == pytest.approx(4 * (8 * (12 * 1024**2 + 13 * 1024) + (32000 + 512 + 2) * 1024) / 8)


def test_published_sizes_have_the_published_parameters() -> None:
    for name, billions in (("gpt-1.2b", 1.2), ("gpt-2.5b", 2.5), ("gpt-4.2b", 4.2), ("gpt-8.3b", 8.3), ("gpt-8.7b", 8.67),
                           ("mt-nlg-530b", 529.6)):  # fmt: skip
        assert WORKLOADS[name].parameters / 1e9 == pytest.approx(billions, rel=0.03)
    assert WORKLOADS["bert-large-128"].parameters / 1e6 == pytest.approx(336, rel=0.02)
    # The count of arXiv 2104.04473, written as it is printed there.
    work = WORKLOADS["mt-nlg-530b"]
    h, n, s, v = 20480, 105, 2048, 51200
    assert work.flops_per_token(True) * s == pytest.approx(96 * s * n * h**2 * (1 + s / (6 * h) + v / (16 * n * h)))


def test_cost_and_energy(cluster: Cluster, work: TransformerWorkload) -> None:
    estimate = predict(work, cluster, Layout(6, 1, 1, 1, 6), "fp16", IDEAL)
    assert estimate.kilowatts == 4.0 and estimate.price_per_hour == 12.0  # six devices are on two nodes
    assert estimate.run_hours(3600 * estimate.tokens_per_second) == pytest.approx(1.0)


def test_ranking_is_by_time_among_what_fits(cluster: Cluster, work: TransformerWorkload) -> None:
    candidates = list(scaling.layouts(work, cluster, 16, 64, "fp16"))
    assert len(set(candidates)) == len(candidates) and all(layout.devices == 16 for layout in candidates)
    assert {layout.tensor_parallel_size for layout in candidates} == {1, 2, 4}
    assert {layout.pipeline_parallel_size for layout in candidates} == {1, 2, 4, 8}
    ranked = scaling.rank(work, cluster, 16, candidates, "fp16", FITTED)
    seconds = [estimate.step_seconds for estimate in ranked]
    assert seconds == sorted(seconds) and len(ranked) == len(candidates)
    tight = replace(cluster, memory_gib=0.9)
    fewer = scaling.rank(work, tight, 16, candidates, "fp16", FITTED)
    assert 0 < len(fewer) < len(ranked) and all(e.memory_bytes <= 0.9 * 2**30 * 0.92 for e in fewer)


def test_every_layout_of_the_published_530b_is_found_and_the_published_one_is_the_fastest() -> None:
    cluster = load_cluster("dgx-a100").resized(2240)
    work = WORKLOADS["mt-nlg-530b"]
    best = scaling.rank(work, cluster, 2240, list(scaling.layouts(work, cluster, 2240, 1920, "bf16")), "bf16", FITTED)[
        0
    ]
    assert best.layout == Layout(8, 8, 35, 1, 1920, recompute=True)
    assert best.model_utilisation == pytest.approx(0.297, abs=0.02)  # mtnlg_hparams.csv, by another paper's count


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout(32, 1, 1, 1, 32), r"needs 32 devices and round has 16: give more nodes or smaller sizes"),
        (Layout(1, 3, 1, 1, 1), r"small cannot be split 3 ways: 16 is not divisible by 3"),
        (Layout(1, 1, 3, 1, 1), r"8 layers of small do not fill 3 stages: take a divisor"),
    ],
)
def test_impossible_layouts_say_why(cluster: Cluster, work: TransformerWorkload, layout: Layout, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predict(work, cluster, layout, "fp16", IDEAL)


def test_other_mistakes_say_what_to_do(cluster: Cluster, work: TransformerWorkload) -> None:
    with pytest.raises(ValueError, match=r"round knows no bf16: its file has fp16"):
        predict(work, cluster, Layout(1), "bf16", IDEAL)
    with pytest.raises(ValueError, match=r"mlstm-256 runs data parallel only: tensor and pipeline sizes must be 1"):
        predict(mlstm(256), cluster, Layout(1, 2, 1, 1, 1), "fp16", IDEAL)
    with pytest.raises(ValueError, match=r"tensor_parallel_size is 0: it must be at least 1"):
        Layout(1, 0)
    with pytest.raises(
        ValueError,
        match=r"a global batch of 10 cannot be split into 4 ranks with micro-batches of 1: take a multiple of 4",
    ):
        Layout(4, 1, 1, 1, 10)
    with pytest.raises(ValueError, match=r"no layout of small on 16 devices divides this global batch"):
        scaling.rank(work, cluster, 16, [], "fp16", IDEAL)
    with pytest.raises(
        ValueError, match=r"small fits on 16 x x in no layout: the smallest needs \d\.\d of 0\.0 GiB a device"
    ):
        scaling.rank(work, replace(cluster, memory_gib=0.01), 16, [Layout(16, 1, 1, 1, 16)], "fp16", IDEAL)
