"""`bigbatch plan`: seconds, memory, cost and energy of training a model on a cluster, before anything is bought or queued."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..analysis.clusters import Cluster
    from ..analysis.scaling import Estimate, Layout
    from ..analysis.workloads import Workload

DESCRIPTION = """Predict a training step on a cluster and rank the layouts that fit into memory.

  bigbatch plan --model mt-nlg-530b --cluster dgx-a100 --devices 2240 --global-batch-size 1920 --precision bf16
  bigbatch plan --model configs/mlstm/demo.yaml --cluster my-cluster.yaml --global-batch-size 1024 --precision fp32
  bigbatch plan --backtest        the model against published tables, and what it says about larger clusters

Sizes of a layout that are named are kept; the others are searched. docs/scaling.md says what it can do and cannot."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch plan", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", metavar="NAME", help="name of a published model, or a YAML file with `model:`")
    parser.add_argument("--cluster", metavar="NAME", help="YAML file, or name of one in configs/clusters")
    parser.add_argument("--devices", type=int, help="how many of them (default: all of the cluster)")
    parser.add_argument("--global-batch-size", type=int, help="samples a step")
    parser.add_argument("--precision", choices=("fp32", "tf32", "fp16", "bf16"), default="fp16", help="default: fp16")
    parser.add_argument("--micro-batch-size", type=int, help="samples of a rank at once")
    parser.add_argument("--data-parallel-size", type=int)
    parser.add_argument("--tensor-parallel-size", type=int)
    parser.add_argument("--pipeline-parallel-size", type=int)
    parser.add_argument(
        "--recompute", choices=("yes", "no"), help="keep a layer's input only, and compute the rest again"
    )
    parser.add_argument(
        "--tflops", type=float, help="measured rate of one device, instead of the cluster file's (1e12 FLOP/s)"
    )
    parser.add_argument(
        "--tflops-size", type=int, help="smallest matrix dimension at which it was measured (default: the model's own)"
    )
    parser.add_argument("--price", type=float, help="of a device and hour, instead of the cluster file's")
    parser.add_argument("--tokens", type=float, default=1e9, help="to train on, for cost and energy (default: 1e9)")
    parser.add_argument("--top", type=int, default=10, help="layouts to print (default: 10)")
    parser.add_argument("--backtest", action="store_true", help="compare with published tables instead")
    return parser


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    if args.backtest:
        from ..analysis.backtest import report
        from ..analysis.extrapolation import larger

        print(f"{report()}\n\n## Ten times larger\n\n{larger()}")
        return 0
    needed = ("model", "cluster", "global_batch_size")
    missing = [f"--{name.replace('_', '-')}" for name in needed if getattr(args, name) is None]
    if missing:
        raise ValueError(
            f"{', '.join(missing)} missing: a plan needs a model, a cluster and a global batch (or --backtest)"
        )
    for name in ("devices", "global_batch_size", "tokens", "top"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            raise ValueError(f"--{name.replace('_', '-')} is {value}: it must be positive")
    from ..analysis.clusters import load_cluster
    from ..analysis.workloads import load_workload

    work, cluster = load_workload(args.model), load_cluster(args.cluster)
    devices = args.devices or cluster.devices
    cluster = with_given(args, work, cluster.resized(devices))
    print(table(args, work, cluster, devices))
    return 0


def with_given(args: argparse.Namespace, work: Workload, cluster: Cluster) -> Cluster:
    """The cluster with the rate and the price of the command line."""
    from dataclasses import replace

    from ..analysis.clusters import Rate

    if args.tflops is not None:
        size = args.tflops_size or work.matrix_size(args.micro_batch_size or 1_000_000, args.tensor_parallel_size or 1)
        if args.tflops <= 0 or size < 1:
            raise ValueError(f"--tflops {args.tflops} at size {size}: both must be positive")
        cluster = replace(cluster, rates=(Rate(work.family, args.precision, args.tflops, size, "given"),))
    return cluster if args.price is None else replace(cluster, price_per_device_hour=args.price)


def wanted(args: argparse.Namespace, layouts: Sequence[Layout]) -> list[Layout]:
    """The layouts that have the sizes which were named."""
    names = ("micro_batch_size", "data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size")
    fixed = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.recompute:
        fixed["recompute"] = args.recompute == "yes"
    found = [layout for layout in layouts if all(getattr(layout, name) == value for name, value in fixed.items())]
    if layouts and not found:
        sizes = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in fixed.items())
        raise ValueError(f"no layout that uses all devices and divides the batch has {sizes}: change one of them")
    return found


def line(estimate: Estimate, low: float, high: float, tokens: float) -> str:
    """A layout as a row of the table."""
    layout, hours = estimate.layout, estimate.run_hours(tokens)
    cells = [
        str(layout.data_parallel_size),
        str(layout.tensor_parallel_size),
        str(layout.pipeline_parallel_size),
        str(layout.micro_batch_size),
        "yes" if layout.recompute else "no",
        f"{estimate.step_seconds:.4g}",
        f"{low:.3g}-{high:.3g}",
        f"{estimate.tokens_per_second:,.0f}",
        f"{100 * estimate.model_utilisation:.1f} %",
        f"{100 * estimate.hardware_utilisation:.1f} %",
        f"{estimate.memory_bytes / 2**30:.2f}",
        f"{hours:,.2f}",
        "-" if estimate.price_per_hour is None else f"{hours * estimate.price_per_hour:,.0f}",
        f"{hours * estimate.kilowatts / 1000:,.3g}",
    ]
    return f"| {' | '.join(cells)} |"


def table(args: argparse.Namespace, work: Workload, cluster: Cluster, devices: int) -> str:
    """The fastest layouts as Markdown, with the parts of the first one's step."""
    from ..analysis import scaling
    from ..analysis.extrapolation import ninth_decile, spread
    from ..analysis.fitted import FITTED

    batch, precision = args.global_batch_size, args.precision
    cluster.rate(work.family, precision)  # a missing rate is said before anything is searched
    possible = wanted(args, list(scaling.layouts(work, cluster, devices, batch, precision)))
    ranked = scaling.rank(work, cluster, devices, possible, precision, FITTED)
    lines = [
        f"{work.name} ({work.parameters:,} parameters) in {precision} on {devices} x {cluster.device} ({cluster.name}), "
        f"global batch {batch} x {work.seq_length} tokens",
        "",
        "| data | tensor | pipeline | micro-batch | recompute | s/step | range | tokens/s | model util. | hardware util. "
        f"| GiB a device | hours | price | MWh for {args.tokens:.3g} tokens |",
        "|---" * 14 + "|",
    ]
    for estimate in ranked[: args.top]:
        _, low, high = spread(work, cluster, estimate.layout, precision)
        lines.append(line(estimate, low, high, args.tokens))
    first = ranked[0]
    parts = {
        name.removesuffix("_seconds"): getattr(first, name) for name in vars(first) if name.endswith("_seconds")
    }  # shares of the fastest
    lines += [
        "",
        f"{len(ranked)} of {len(possible)} layouts fit. The first one's step: "
        + ", ".join(f"{name} {100 * value / first.step_seconds:.1f} %" for name, value in parts.items())
        + ". Its memory in GiB: "
        + ", ".join(f"{name} {value / 2**30:.2f}" for name, value in first.memory.items())
        + ".",
        f"Range: over fits that leave out one published table. Nine of ten published rows are within {100 * ninth_decile():.0f} % "
        "of the prediction (logarithmic), on tables not fitted.",
    ]
    return "\n".join(lines)
