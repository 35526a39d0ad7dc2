"""Seconds, memory, cost and energy of a training step on a cluster, from closed forms and a measured rate of one device.

A step is computation at the measured rate, the collectives of tensor parallelism, the bubble and the messages of a
pipeline, the exchange of gradients, the optimizer, and the wait of ranks for the slowest. What data sheets leave open
are the few global numbers of `Parameters`, fitted to published tables in `backtest.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .clusters import BYTES, Cluster
from .collectives import Group, Link, all_reduce
from .workloads import Workload

# Adam reads parameter, gradient and two moments in fp32, writes parameter and moments, and a half-precision copy.
OPTIMIZER_BYTES = 4 * 4 + 3 * 4 + 2
# What allocator, libraries and fragments leave of a device's memory.
USABLE_MEMORY = 0.92


@dataclass(frozen=True)
class Parameters:
    """The fitted numbers, one set for all models, devices and networks.

    Args:
        half_size: a matrix product whose smallest dimension is this many times the one at which arithmetic and memory
            traffic balance on the data sheet runs at half of the rate that it tends to.
        intra_efficiency: share of the data sheet's bandwidth that collectives reach inside a node.
        inter_efficiency: the same between nodes.
        straggler: part of a step that ranks wait for the slowest, for each doubling of the number of nodes.
        overlap: share of the exchange of gradients that hides behind the backward pass of the layers below.
    """

    half_size: float
    intra_efficiency: float
    inter_efficiency: float
    straggler: float
    overlap: float


@dataclass(frozen=True)
class Layout:
    """How a global batch is spread. Neighbours in a node share a tensor group first, then a data-parallel group.

    Raises:
        ValueError: sizes below 1, or a global batch that they do not divide.
    """

    data_parallel_size: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    micro_batch_size: int = 1
    global_batch_size: int = 1
    recompute: bool = False

    def __post_init__(self) -> None:
        for name in ("data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size", "micro_batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        part = self.data_parallel_size * self.micro_batch_size
        if self.global_batch_size < part or self.global_batch_size % part:
            raise ValueError(
                f"a global batch of {self.global_batch_size} cannot be split into {self.data_parallel_size} ranks with "
                f"micro-batches of {self.micro_batch_size}: take a multiple of {part}"
            )

    @property
    def devices(self) -> int:
        return self.data_parallel_size * self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def grad_accum_steps(self) -> int:
        return self.global_batch_size // (self.data_parallel_size * self.micro_batch_size)


@dataclass(frozen=True)
class Estimate:
    """A step as predicted; seconds add up to `step_seconds`."""

    layout: Layout
    compute_seconds: float
    tensor_seconds: float
    bubble_seconds: float
    pipeline_seconds: float
    exchange_seconds: float
    optimizer_seconds: float
    wait_seconds: float
    tokens: int
    model_flops: float
    hardware_flops: float
    peak_flops: float
    memory: dict[str, float]
    memory_limit: float
    kilowatts: float
    price_per_hour: float | None

    @property
    def step_seconds(self) -> float:
        parts = (self.compute_seconds, self.tensor_seconds, self.bubble_seconds, self.pipeline_seconds)
        return sum(parts) + self.exchange_seconds + self.optimizer_seconds + self.wait_seconds

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.step_seconds

    @property
    def device_tflops(self) -> float:
        """Hardware FLOP/s of one device, 1e12."""
        return self.hardware_flops / self.step_seconds / self.layout.devices / 1e12

    @property
    def model_utilisation(self) -> float:
        return self.model_flops / self.step_seconds / self.peak_flops

    @property
    def hardware_utilisation(self) -> float:
        return self.hardware_flops / self.step_seconds / self.peak_flops

    @property
    def memory_bytes(self) -> float:
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.memory_limit

    def run_hours(self, tokens: float) -> float:
        return tokens / self.tokens_per_second / 3600


def size_efficiency(size: int, cluster: Cluster, precision: str, half_size: float) -> float:
    """Share of the rate it tends to that a matrix product reaches, by its smallest dimension.

    Reading a weight of b bytes once for `size` rows costs b / bandwidth, multiplying 2 size / peak seconds.
    """
    peak = cluster.peak_tflops[precision] * 1e12
    balance = peak * BYTES[precision] / (2 * cluster.memory_gb_per_second * 1e9)
    return size / (size + half_size * balance)


def group(cluster: Cluster, size: int, stride: int, fitted: Parameters) -> Group:
    """The devices that a group of `size` members, `stride` devices apart, has in a node and over how many nodes."""
    local = min(size, max(1, cluster.devices_per_node // stride))
    intra, inter = cluster.intra, cluster.inter
    return Group(
        local=local,
        nodes=math.ceil(size / local),
        intra=Link(intra.bytes_per_second * fitted.intra_efficiency, intra.latency_seconds),
        inter=Link(inter.bytes_per_second * fitted.inter_efficiency, inter.latency_seconds),
    )


def predict(
    work: Workload, cluster: Cluster, layout: Layout, precision: str, fitted: Parameters, family: str | None = None
) -> Estimate:
    """The step of a model under a layout.

    Args:
        work: the model.
        cluster: with at least as many devices as the layout has.
        layout: who computes what.
        precision: of the products and of all messages.
        fitted: `backtest.FITTED` for planning.
        family: the measured rate to take, if not the model's own family.

    Raises:
        ValueError: if the cluster is too small, has no such rate, or the model cannot be split so.
    """
    check_layout(work, cluster, layout, precision)
    tensor, pipeline, steps = layout.tensor_parallel_size, layout.pipeline_parallel_size, layout.grad_accum_steps
    tokens = layout.global_batch_size * work.seq_length
    hardware = work.flops_per_token(layout.recompute) * tokens
    speed = _device_flops(work, cluster, layout, precision, fitted, family or work.family)
    compute = hardware / layout.devices / speed
    message = work.message_bytes(layout.micro_batch_size, precision)
    tensor_seconds = 0.0
    if tensor > 1:  # two all-reduces of a layer's output forward, two backward, two more where forward is repeated
        count = (6 if layout.recompute else 4) * work.num_layers / pipeline * steps
        tensor_seconds = count * all_reduce(message, group(cluster, tensor, 1, fitted))
    held = work.parameters / (tensor * pipeline)
    nodes = math.ceil(layout.devices / cluster.devices_per_node)
    hourly = cluster.price_per_device_hour
    return Estimate(
        layout=layout,
        compute_seconds=compute,
        tensor_seconds=tensor_seconds,
        bubble_seconds=(compute + tensor_seconds) * (pipeline - 1) / steps,
        pipeline_seconds=_pipeline_seconds(message / tensor, cluster, layout, fitted),
        exchange_seconds=_exchange_seconds(
            work, cluster, layout, held * BYTES[precision], compute + tensor_seconds, fitted
        ),
        optimizer_seconds=held * OPTIMIZER_BYTES / (cluster.memory_gb_per_second * 1e9),
        wait_seconds=fitted.straggler * math.log2(nodes) * (compute + tensor_seconds),
        tokens=tokens,
        model_flops=work.flops_per_token(False) * tokens,
        hardware_flops=hardware,
        peak_flops=layout.devices * cluster.peak_tflops[precision] * 1e12,
        memory=work.memory(layout.micro_batch_size, steps, tensor, pipeline, precision, layout.recompute),
        memory_limit=cluster.memory_gib * 2**30 * USABLE_MEMORY,
        kilowatts=nodes * cluster.watts_per_node / 1000,
        price_per_hour=None if hourly is None else layout.devices * hourly,
    )


def _device_flops(
    work: Workload, cluster: Cluster, layout: Layout, precision: str, fitted: Parameters, family: str
) -> float:
    """FLOP/s of a device: the measured rate, corrected for matrices of another size than those it was measured with."""
    rate = cluster.rate(family, precision)
    size = work.matrix_size(layout.micro_batch_size, layout.tensor_parallel_size)
    reached, reference = (
        size_efficiency(value, cluster, precision, fitted.half_size) for value in (size, rate.matrix_size)
    )
    return rate.tflops * 1e12 * reached / reference


def _exchange_seconds(
    work: Workload, cluster: Cluster, layout: Layout, size: float, busy: float, fitted: Parameters
) -> float:
    """What the exchange of `size` bytes of gradients adds to a step that computes for `busy` seconds."""
    if layout.data_parallel_size == 1:
        return 0.0
    whole = all_reduce(size, group(cluster, layout.data_parallel_size, layout.tensor_parallel_size, fitted))
    # The first layer's gradients come last and have nothing left to hide behind; the others have what is left of the
    # backward pass of the last micro-batch.
    backward = busy / layout.grad_accum_steps * (0.75 if layout.recompute else 2 / 3)
    return whole - min(fitted.overlap * (1 - 1 / work.num_layers) * whole, backward)


def _pipeline_seconds(size: float, cluster: Cluster, layout: Layout, fitted: Parameters) -> float:
    """Activations forward and gradients backward, once a micro-batch, to a stage that is on another node if it must be."""
    if layout.pipeline_parallel_size == 1:
        return 0.0
    near = layout.devices <= cluster.devices_per_node
    pair = group(cluster, 2, 1 if near else cluster.devices_per_node, fitted)
    link = pair.intra if near else pair.inter
    return 2 * layout.grad_accum_steps * (size / link.bytes_per_second + link.latency_seconds)


def check_layout(work: Workload, cluster: Cluster, layout: Layout, precision: str) -> None:
    """Raises ValueError with the reason why a layout is impossible; memory is not looked at."""
    tensor, pipeline = layout.tensor_parallel_size, layout.pipeline_parallel_size
    if precision not in cluster.peak_tflops:
        raise ValueError(f"{cluster.name} knows no {precision}: its file has {', '.join(cluster.peak_tflops)}")
    if layout.devices > cluster.devices:
        raise ValueError(
            f"the layout needs {layout.devices} devices and {cluster.name} has {cluster.devices}: give more nodes or smaller sizes"
        )
    if tensor * pipeline > 1 and not work.tensor_sizes():
        raise ValueError(f"{work.name} runs data parallel only: tensor and pipeline sizes must be 1")
    for size in work.tensor_sizes():
        if size % tensor:
            raise ValueError(f"{work.name} cannot be split {tensor} ways: {size} is not divisible by {tensor}")
    if work.num_layers % pipeline:
        raise ValueError(f"{work.num_layers} layers of {work.name} do not fill {pipeline} stages: take a divisor")


def layouts(work: Workload, cluster: Cluster, devices: int, global_batch_size: int, precision: str) -> Iterator[Layout]:
    """All layouts that use every one of `devices`: tensor groups inside a node, micro-batches of powers of two.

    Raises:
        ValueError: if the cluster does not know the precision.
    """
    check_layout(work, cluster, Layout(1), precision)
    tensors = [1] + [t for t in range(2, cluster.devices_per_node + 1) if cluster.devices_per_node % t == 0]
    for tensor in tensors if work.tensor_sizes() else [1]:
        for pipeline in range(1, work.num_layers + 1) if work.tensor_sizes() else [1]:
            data, rest = divmod(devices, tensor * pipeline)
            if rest:
                continue
            micro = 1
            while data * micro <= global_batch_size:
                for recompute in (False, True):
                    try:
                        layout = Layout(data, tensor, pipeline, micro, global_batch_size, recompute)
                        check_layout(work, cluster, layout, precision)
                    except ValueError:
                        continue
                    yield layout
                micro *= 2


def rank(
    work: Workload, cluster: Cluster, devices: int, candidates: Sequence[Layout], precision: str, fitted: Parameters
) -> list[Estimate]:
    """Estimates of the layouts that fit into memory, the fastest first.

    Raises:
        ValueError: if there are none, or none fits.
    """
    found = [predict(work, cluster, layout, precision, fitted) for layout in candidates]
    if not found:
        raise ValueError(
            f"no layout of {work.name} on {devices} devices divides this global batch: take a multiple of the number of devices"
        )
    fitting = [estimate for estimate in found if estimate.fits]
    if not fitting:
        least = min(found, key=lambda estimate: estimate.memory_bytes)
        raise ValueError(
            f"{work.name} fits on {devices} x {cluster.device} in no layout: the smallest needs "
            f"{least.memory_bytes / 2**30:.1f} of {least.memory_limit / 2**30:.1f} GiB a device: take more devices, or a "
            "smaller global batch"
        )
    return sorted(fitting, key=lambda estimate: estimate.step_seconds)
