"""What the scaling model says about clusters ten times as large as those measured, and how sure it is.

Each number comes with two ranges: over the sets of fitted numbers that leave out one table, and that range widened by
the error which nine of ten rows of the back-test keep. Beyond measured sizes nothing checks the forms themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from .backtest import errors, targets
from .clusters import Cluster, load_cluster
from .fitted import FITTED, LEFT_OUT
from .scaling import Estimate, Layout, Parameters, predict
from .workloads import WORKLOADS, Workload


@dataclass(frozen=True)
class Case:
    """A published layout that is grown by data parallelism alone."""

    model: str
    cluster: str
    layout: Layout
    precision: str


CASES = (
    Case("mlstm-4096", "dgx1v-infiniband", Layout(128, 1, 1, 256, 32768), "fp16"),
    Case("mlstm-4096", "dgx1v-ethernet", Layout(128, 1, 1, 256, 32768), "fp16"),
    Case("mlstm-8192", "dgx1v-infiniband", Layout(128, 1, 1, 96, 12288), "fp16"),
    Case("gpt-8.7b", "dgx-a100", Layout(128, 8, 1, 16, 2048, True), "fp16"),
    Case("bert-large-128", "dgx2h", Layout(1024, 1, 1, 64, 65536), "fp16"),
    Case("mt-nlg-530b", "dgx-a100", Layout(12, 8, 35, 1, 1920, True), "bf16"),
)


def ninth_decile() -> float:
    """The absolute logarithmic error that nine of ten rows keep when their table is left out."""
    rows = targets()
    off = [abs(np.log1p(errors([row], LEFT_OUT[row.table])[0])) for row in rows]
    return float(np.quantile(off, 0.9))


def spread(
    work: Workload, cluster: Cluster, layout: Layout, precision: str, family: str | None = None
) -> tuple[Estimate, float, float]:
    """The estimate of a layout, and the least and largest seconds over all sets of fitted numbers."""
    sets = [FITTED, *LEFT_OUT.values()]
    found = [predict(work, cluster, layout, precision, fitted, family) for fitted in sets]
    seconds = [estimate.step_seconds for estimate in found]
    return found[0], min(seconds), max(seconds)


def _efficiency(case: Case, cluster: Cluster, layout: Layout, fitted: Parameters) -> float:
    """Tokens a second and device, relative to the published layout that the case starts from."""

    def each(layout: Layout) -> float:
        nodes = cluster.resized(layout.devices)
        estimate = predict(WORKLOADS[case.model], nodes, layout, case.precision, fitted)
        return estimate.tokens_per_second / layout.devices

    return each(layout) / each(case.layout)


def larger(factor: int = 10) -> str:
    """Each case at `factor` times the devices, with as many times the batch and with the same batch, as Markdown."""
    wide = ninth_decile()
    lines = [
        "| model, cluster | devices | global batch | seconds a step | over parameter sets | with the back-test's error | "
        "speed a device, against the published size |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        ranks = case.layout.data_parallel_size * factor
        # Ten times the batch, and the same one, rounded down to what the ranks divide.
        for batch in (case.layout.global_batch_size * factor, case.layout.global_batch_size // ranks * ranks):
            if batch < ranks:
                lines.append(
                    f"| {case.model}, {case.cluster} | {ranks:,} ranks | the same | more ranks than samples | | | |"
                )
                continue
            micro = math.gcd(case.layout.micro_batch_size, batch // ranks)
            if case.layout.grad_accum_steps == 1:
                micro = batch // ranks
            layout = replace(case.layout, data_parallel_size=ranks, global_batch_size=batch, micro_batch_size=micro)
            cluster = load_cluster(case.cluster).resized(layout.devices)
            estimate, low, high = spread(WORKLOADS[case.model], cluster, layout, case.precision)
            kept = [_efficiency(case, cluster, layout, fitted) for fitted in (FITTED, *LEFT_OUT.values())]
            lines.append(
                f"| {case.model}, {case.cluster} | {layout.devices:,} | {batch:,} | {estimate.step_seconds:.3g} | "
                f"{low:.3g} to {high:.3g} | {low * np.exp(-wide):.3g} to {high * np.exp(wide):.3g} | "
                f"{kept[0]:.2f} ({min(kept):.2f} to {max(kept):.2f}) |"
            )
    return "\n".join(lines)
