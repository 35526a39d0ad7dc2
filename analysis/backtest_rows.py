"""Every published measurement that the scaling model is compared with, as a row with its layout and its prediction.

A table yields rows. What a table leaves out (micro-batches, mostly) is filled in here for the whole table, and named in
`note`. Nothing is chosen row by row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .clusters import Cluster, load_cluster
from .published_tables import number, read_published
from .scaling import Layout, Parameters, predict
from .workloads import WORKLOADS, TransformerWorkload, Workload, bert_large, mlstm

TOKENS_PER_EPOCH = 38.27e9  # 73,000 steps of 2,048 x 256, derived_throughput.csv
BERT_PHASES = {128: (7038, 65536), 512: (1563, 32768)}  # steps, global batch: bert_large_recipe.csv


@dataclass(frozen=True)
class Row:
    """A published number and how to predict it.

    Args:
        table: file in analysis/published.
        name: what was measured.
        devices: their number.
        unit: of published and predicted.
        published: as printed, or read off a figure.
        predict: of fitted parameters.
        use: `target` counts towards the stated error and may be fitted; `extra` is predicted and never fitted;
            `excluded` cannot be predicted fairly.
        note: what was assumed, or why the row does not count.
    """

    table: str
    name: str
    devices: int
    unit: str
    published: float
    predict: Callable[[Parameters], float]
    use: str = "target"
    note: str = ""


def nothing(fitted: Parameters) -> float:
    """Of a row that cannot be predicted."""
    return math.nan


def step_seconds(
    work: Workload,
    cluster: Cluster,
    layout: Layout,
    fitted: Parameters,
    precision: str = "fp16",
    family: str | None = None,
) -> float:
    return predict(work, cluster.resized(layout.devices), layout, precision, fitted, family).step_seconds


def mlstm_scaling() -> Iterator[Row]:
    """Speed-ups over one GPU. 4,096 units with 256 a GPU; 8,192 with 96 (the 768 of 8 GPUs, and what 16 GB hold)."""
    for row in read_published("nv1808_gpu_scaling"):
        devices, published = int(row["gpus"]), float(row["effective_speedup_approx"])
        hidden, batch = (4096, 256) if row["series"].startswith("4k") else (8192, 96)
        cluster = load_cluster("dgx1v-ethernet" if "no_infiniband" in row["series"] else "dgx1v-infiniband")

        def speedup(
            fitted: Parameters,
            devices: int = devices,
            hidden: int = hidden,
            batch: int = batch,
            cluster: Cluster = cluster,
        ) -> float:
            alone = step_seconds(mlstm(hidden), cluster, Layout(1, 1, 1, batch, batch), fitted)
            return (
                devices
                * alone
                / step_seconds(mlstm(hidden), cluster, Layout(devices, 1, 1, batch, batch * devices), fitted)
            )

        note = "batch per GPU assumed: 96" if hidden == 8192 else ""
        yield Row("nv1808_gpu_scaling", row["series"].replace("_", " "), devices, "x", published, speedup, note=note)


def mlstm_epoch_hours() -> Iterator[Row]:
    """Hours for an epoch of the Amazon reviews on one DGX-1V."""
    cluster = load_cluster("dgx1v-infiniband")
    for row in read_published("nv_train_time_8gpu"):
        batch = int(row["global_batch"])
        precision = "fp32" if row["run"].startswith("FP32") else "fp16"

        def hours(fitted: Parameters, batch: int = batch, precision: str = precision) -> float:
            step = step_seconds(mlstm(4096), cluster, Layout(8, 1, 1, batch // 8, batch), fitted, precision)
            return TOKENS_PER_EPOCH / (batch * 256) * step / 3600

        old = "first release" in row["run"]
        why = "an earlier release of the code, twice as slow as a later one with the same settings; no rate of its own"
        yield Row(
            "nv_train_time_8gpu", row["run"], 8, "h", float(row["hours_for_one_epoch_approx"]), hours,
            "excluded" if old else "target",
            why if old else "",
        )  # fmt: skip


def gpt(row: dict[str, str], seq_length: int, vocab_size: int, heads: int | None = None) -> TransformerWorkload:
    return TransformerWorkload(
        "gpt", "gpt", int(row["hidden"]), int(row["layers"]), heads or int(row["heads"]), vocab_size, seq_length
    )


def megatron_2020() -> Iterator[Row]:
    """Milliseconds of an iteration with tensor parallelism, alone and with 128-fold data parallelism."""
    for row in read_published("megatron_weak_scaling"):
        if not row["series"].startswith("2020"):
            continue
        tensor, data, batch = int(row["tensor_or_model_parallel"]), int(row["data_parallel"] or 1), int(row["batch"])
        if tensor * data == 1:
            continue  # the single device whose rate is taken
        cluster = load_cluster("dgx2h" if "V100" in row["series"] else "dgx-a100")
        layout = Layout(data, tensor, 1, batch // data, batch, recompute=True)

        def iteration(
            fitted: Parameters, row: dict[str, str] = row, layout: Layout = layout, cluster: Cluster = cluster
        ) -> float:
            return 1000 * step_seconds(gpt(row, 1024, 51200), cluster, layout, fitted)

        name = f"{row['series'].removeprefix('2020 ')} {row['params_B']} B"
        yield Row("megatron_weak_scaling", name, tensor * data, "ms", float(row["iter_ms"]), iteration)


def megatron_2019() -> Iterator[Row]:
    """Strong scaling of 1.2 B, weak scaling to 8.3 B, relative to 1.2 B on one GPU of the same code."""
    cluster, family = load_cluster("dgx2h"), "gpt-2019"
    config = {row["params_B"]: row for row in read_published("megatron_scaling_configs")}

    def seconds(fitted: Parameters, size: str, data: int, tensor: int, heads: int | None = None) -> tuple[float, float]:
        work = gpt(config[size], 1024, 51200, heads)
        layout = Layout(data, tensor, 1, 8, 8 * data, recompute=True)
        step = step_seconds(work, cluster, layout, fitted, family=family)
        return step, work.flops_per_token(True) * 1024 * 8 * data

    def weak(fitted: Parameters, data: int, heads: int | None = None) -> float:
        base, base_flops = seconds(fitted, "1.2", 1, 1)
        step, flops = seconds(fitted, "8.3", data, 8, heads)
        return 100 * flops / step / (8 * data) / (base_flops / base)

    for row in read_published("megatron_heads_and_strong_scaling"):
        what, setting, value = row["experiment"], row["setting"], float(row["value"].split()[0])
        table = "megatron_heads_and_strong_scaling"
        if what == "1.2B strong scaling" and setting != "1 GPU":
            tensor = int(setting.split()[0])

            def speedup(fitted: Parameters, tensor: int = tensor) -> float:
                return seconds(fitted, "1.2", 1, 1)[0] / seconds(fitted, "1.2", 1, tensor)[0]

            yield Row(table, what, tensor, "x", value, speedup)
        elif what.startswith("8.3B 8-way"):
            heads = int(what.split()[2])
            yield Row(table, what, 8, "%", value, lambda fitted, heads=heads: weak(fitted, 1, heads))
        elif what == "8.3B 8 GPUs model parallel only":
            yield Row(table, what, 8, "%", value, lambda fitted: weak(fitted, 1))
        elif setting == "scaling vs 1.2B x1 (body)":
            yield Row(table, "8.3B 512 GPUs, scaling", 512, "%", value, lambda fitted: weak(fitted, 64))
        elif setting == "aggregate":
            yield Row(
                table, "8.3B 512 GPUs, aggregate", 512, "PFLOP/s", value,
                lambda fitted: seconds(fitted, "8.3", 64, 8)[1] / seconds(fitted, "8.3", 64, 8)[0] / 1e15,
            )  # fmt: skip


def bert_seconds(
    fitted: Parameters, cluster: Cluster, devices: int, seq_length: int, micro: int, family: str | None = None
) -> float:
    """One step of a phase of BERT-large."""
    batch = BERT_PHASES[seq_length][1]
    layout = Layout(devices, 1, 1, min(micro, batch // devices), batch)
    return step_seconds(bert_large(seq_length), cluster, layout, fitted, family=family)


def bert_throughput() -> Iterator[Row]:
    """Sequences a second; the one-node rows gave the rate."""
    for row in read_published("bert_throughput_scaling"):
        nodes, devices, length = int(row["nodes"]), int(row["gpus"]), int(row["seq_len"])
        if nodes == 1:
            continue
        cluster = load_cluster("dgx2h" if "V100" in row["system"] else "dgx-a100")

        def sequences(
            fitted: Parameters, devices: int = devices, length: int = length, cluster: Cluster = cluster
        ) -> float:
            return BERT_PHASES[length][1] / bert_seconds(fitted, cluster, devices, length, 64 if length == 128 else 8)

        name = f"{row['system'].split()[1]} sequences of {length}"
        yield Row(
            "bert_throughput_scaling", name, devices, "seq/s", float(row["sequences_per_s"]), sequences,
            note="global batch of the recipe; micro-batch 64 and 8",
        )  # fmt: skip


def bert_hours() -> Iterator[Row]:
    """Hours of both phases."""
    for row in read_published("bert_time_vs_gpus"):
        devices, hours, system = int(row["gpus"]), float(row["hours"] or 0) or float(row["minutes"]) / 60, row["system"]
        values = ("bert_time_vs_gpus", f"{system}, {row['precision']}", devices, "h", hours)
        if number(row["global_batch_p1"]) is None:
            yield Row(*values, nothing, "excluded", "batch not published")
            continue
        if row["precision"] != "fp16":
            yield Row(*values, nothing, "excluded", "no rate of one device or node in this precision")
            continue
        if devices == 8 or system == "DeepSpeed 1 node":
            continue  # these gave their rate
        family = "bert-deepspeed" if "DeepSpeed" in system else "bert"
        a100, dgx1 = "A100" in system, "DGX-1" in system
        cluster = load_cluster("dgx-a100" if a100 else "dgx1v-infiniband" if dgx1 else "dgx2h")
        micro = (16, 4) if dgx1 else (64, 8)

        def both(
            fitted: Parameters,
            cluster: Cluster = cluster,
            devices: int = devices,
            micro: tuple[int, int] = micro,
            family: str = family,
        ) -> float:
            phases = zip(BERT_PHASES.items(), micro)
            return (
                sum(steps * bert_seconds(fitted, cluster, devices, s, m, family) for (s, (steps, _)), m in phases)
                / 3600
            )

        old = row["gpu"] == "A100-40GB"
        note = (
            "an earlier release of the code, half as fast as the one whose rate is known, on another device"
            if old
            else ""
        )
        yield Row(*values, both, "excluded" if old else "target", note)


def mtnlg() -> Iterator[Row]:
    """Seconds of an iteration of MT-NLG 530B; micro-batch 1 assumed, as 35 stages want many of them."""
    cluster = load_cluster("dgx-a100")
    work = WORKLOADS["mt-nlg-530b"]
    for row in read_published("mtnlg_throughput"):
        layout = Layout(int(row["data_parallel_derived"]), 8, 35, 1, int(row["gbs"]), recompute=True)

        def iteration(fitted: Parameters, layout: Layout = layout) -> float:
            return step_seconds(work, cluster, layout, fitted, "bf16")

        yield Row(
            "mtnlg_throughput", "MT-NLG 530B", int(row["gpus"]), "s", float(row["iteration_s"]), iteration,
            note="micro-batch 1 assumed",
        )  # fmt: skip


def later_megatron() -> Iterator[Row]:
    """TFLOP/s a GPU of the 2021 (A100) and the current (H100) table: never fitted, never counted.

    Micro-batch 1, no interleaving of stages; 2021 prints tensor x pipeline only, of which 8 are taken as tensor.
    """
    for row in read_published("megatron_weak_scaling"):
        year = row["series"].split()[0]
        devices, batch, tensor = int(row["gpus"]), int(row["batch"]), int(row["tensor_or_model_parallel"])
        if year == "2020" or devices == 48:
            continue  # the first is fitted, the second gave the rate of an H100
        first = year == "2021"
        cluster, precision = (load_cluster("dgx-a100"), "fp16") if first else (load_cluster("dgx-h100"), "bf16")
        pipeline = max(1, tensor // 8) if first else int(row["pipeline_parallel"])
        tensor = min(8, tensor)
        heads = int(row["hidden"]) // 128 if first else int(row["heads"])
        work = gpt(row, 2048 if first else 4096, 51200 if first else 131072, heads)
        data = devices // (tensor * pipeline)
        values = ("megatron_weak_scaling", f"{year} {row['case']}", devices, "TFLOP/s", float(row["tflops_per_gpu"]))
        if work.num_layers % pipeline or batch % data:
            yield Row(*values, nothing, "excluded", "layers do not fill the stages")
            continue
        layout = Layout(data, tensor, pipeline, 1, batch, recompute=first)

        def rate(
            fitted: Parameters,
            work: TransformerWorkload = work,
            cluster: Cluster = cluster,
            layout: Layout = layout,
            precision: str = precision,
        ) -> float:
            return predict(work, cluster.resized(layout.devices), layout, precision, fitted).device_tflops

        yield Row(*values, rate, "extra", "micro-batch 1, no interleaving assumed")


TABLES = (
    mlstm_scaling, mlstm_epoch_hours, megatron_2019, megatron_2020, bert_throughput, bert_hours, mtnlg, later_megatron
)  # fmt: skip


@functools.cache
def all_rows() -> tuple[Row, ...]:
    """Rows of all tables, read once: the files are a part of the package."""
    return tuple(row for table in TABLES for row in table())
