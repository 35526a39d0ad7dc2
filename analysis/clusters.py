"""Clusters as YAML files: devices, their measured rates, networks, price and power.

A rate is measured on one device at a stated size; everything else in a file is from data sheets, or an assumption that
the file says is one. Without torch, so that planning starts at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

import yaml

from .collectives import Link

# Beside the folder of this package, in the repository as in an installed copy.
FOLDER = Path(__file__).resolve().parents[1] / "configs" / "clusters"
BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}


@dataclass(frozen=True)
class Rate:
    """What one device was measured to sustain in training.

    Args:
        family: model family, with the release of the code where releases differ: mlstm, gpt, gpt-2019, bert.
        precision: fp32, tf32, fp16 or bf16.
        tflops: 1e12 FLOP/s by the counts of `workloads.py`, recomputation included where it was used.
        matrix_size: the smallest dimension of the matrix products it was measured with.
        source: where it comes from.
    """

    family: str
    precision: str
    tflops: float
    matrix_size: int
    source: str


@dataclass(frozen=True)
class Cluster:
    """A number of equal nodes.

    Args:
        name: for tables.
        nodes: there are.
        devices_per_node: in each.
        device: its name.
        memory_gib: of a device.
        memory_gb_per_second: bandwidth of that memory, data sheet.
        peak_tflops: precision -> data sheet.
        intra_gb_per_second: of a device to the others of its node, one direction, data sheet.
        intra_latency_us: of a message inside a node.
        inter_gb_per_second: of a whole node, one direction, data sheet.
        inter_latency_us: of a message between nodes.
        watts_per_node: at full load.
        price_per_device_hour: None where nobody has named one.
        rates: measured.

    Raises:
        ValueError: a number that is not positive.
    """

    name: str
    nodes: int
    devices_per_node: int
    device: str
    memory_gib: float
    memory_gb_per_second: float
    peak_tflops: dict[str, float]
    intra_gb_per_second: float
    intra_latency_us: float
    inter_gb_per_second: float
    inter_latency_us: float
    watts_per_node: float
    price_per_device_hour: float | None
    rates: tuple[Rate, ...]

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            for number in value.values() if isinstance(value, dict) else [value]:
                if isinstance(number, str | tuple | None):
                    continue
                if isinstance(number, bool) or not isinstance(number, int | float) or number <= 0:
                    raise ValueError(f"{self.name}: {field.name} is {number!r}: it must be a positive number")

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def intra(self) -> Link:
        return Link(self.intra_gb_per_second * 1e9, self.intra_latency_us * 1e-6)

    @property
    def inter(self) -> Link:
        """The share of one device while all devices of its node send."""
        return Link(self.inter_gb_per_second * 1e9 / self.devices_per_node, self.inter_latency_us * 1e-6)

    def resized(self, devices: int) -> Cluster:
        """The same nodes, as many as `devices` need; fewer than one node are devices of one node.

        Raises:
            ValueError: if they do not fill whole nodes.
        """
        if devices < self.devices_per_node:
            return replace(self, nodes=1)
        if devices % self.devices_per_node:
            raise ValueError(
                f"{devices} devices do not fill nodes of {self.devices_per_node} ({self.name}): take a multiple"
            )
        return replace(self, nodes=devices // self.devices_per_node)

    def rate(self, family: str, precision: str) -> Rate:
        """The measured rate; fp16 and bf16 run at one rate on tensor cores and stand in for each other.

        Raises:
            ValueError: if none was measured.
        """
        half = ("fp16", "bf16")
        for wanted in ([precision], half if precision in half else []):
            for rate in self.rates:
                if rate.family == family and rate.precision in wanted:
                    return rate
        known = ", ".join(f"{rate.family} in {rate.precision}" for rate in self.rates) or "none"
        raise ValueError(
            f"{self.name} has no measured rate of {family} in {precision} (it has: {known}): measure it on one device and "
            "add it under `rates` in the cluster's file, or give --tflops"
        )


def load_cluster(name: str | Path) -> Cluster:
    """Reads a cluster.

    Args:
        name: a YAML file, or the name of one in configs/clusters.

    Raises:
        ValueError: if there is no such file, or it is no cluster.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = FOLDER / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.yaml")))
        raise ValueError(f"there is no cluster file {path}: name a YAML file, or one of {known}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is no cluster: it must hold the fields of analysis/clusters.py, name: value")
    required = {field.name for field in fields(Cluster)} - {"name"}
    wrong = [f"{key} is missing" for key in sorted(required - content.keys())]
    wrong += [f"{key} is unknown" for key in sorted(content.keys() - required)]
    if wrong:
        raise ValueError(f"{path}: {'; '.join(wrong)}")
    try:
        rates = tuple(Rate(**rate) for rate in content.pop("rates") or ())
    except TypeError as error:
        keys = ", ".join(field.name for field in fields(Rate))
        raise ValueError(f"{path}: each of `rates` needs {keys}") from error
    if not isinstance(content["peak_tflops"], dict) or not set(content["peak_tflops"]) <= set(BYTES):
        raise ValueError(f"{path}: peak_tflops must map {', '.join(BYTES)} to numbers")
    return Cluster(name=path.stem, rates=rates, **content)
