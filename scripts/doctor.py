"""`bigbatch doctor`: what this machine has, how fast it is, what is missing and the command that fixes it."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import time

DESCRIPTION = (
    "Versions, devices, threads, the fp32 matrix-multiply rate, and what is missing with the command that fixes it."
)
CORE = ("torch", "numpy", "pandas", "scikit-learn", "matplotlib", "tqdm", "jsonargparse", "safetensors")
EXTRAS = {
    "parquet": ("pyarrow", "reading .parquet files"),
    "zstd": ("zstandard", "reading .zst files"),
    "log": ("tensorboardX", "writing TensorBoard event files"),
}


def build_parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog="bigbatch doctor", description=DESCRIPTION)


def gemm_gflops(size: int = 1024, seconds: float = 1.0, device: str = "cpu", dtype: str = "float32") -> float:
    """Best rate of a square matrix product over about `seconds`, in GFLOP/s."""
    import torch

    a = torch.randn(size, size, device=device, dtype=getattr(torch, dtype))
    best, stop = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < stop:
        start = time.perf_counter()
        torch.mm(a, a)
        if device != "cpu":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best / 1e9


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe() -> list[tuple[str, str]]:
    """Lines of (what, finding)."""
    from bigbatch import __version__

    rows = [("bigbatch", __version__), ("python", f"{platform.python_version()} ({sys.executable})")]
    rows += [(name, version(name) or "MISSING") for name in CORE]
    try:
        import torch
    except ImportError:  # `remedies` says how to get it
        return rows
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    rows += [
        ("processor", f"{platform.machine()}, {cores} cores, torch uses {torch.get_num_threads()} threads"),
        ("instruction set", torch.backends.cpu.get_cpu_capability()),
        ("fp32 GEMM rate", f"{gemm_gflops():.0f} GFLOP/s (1024 x 1024, all threads)"),
    ]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            card = torch.cuda.get_device_properties(index)
            rows.append((f"cuda:{index}", f"{card.name}, {card.total_memory / 2**30:.0f} GiB"))
        rows.append(
            ("fp16 GEMM rate", f"{gemm_gflops(8192, device='cuda', dtype='float16'):.0f} GFLOP/s (8192 x 8192)")
        )
    else:
        rows.append(("cuda", "no device: training runs on the CPU in fp32; fp16 there is exact but slow"))
    from ..fp16 import apex
    from ..models import mlstm_cpu

    kernels = "compiled" if mlstm_cpu.usable(torch.zeros(1)) else "plain PyTorch (no compiler)"
    rows.append(("mLSTM on CPU", kernels))

    rows.append(("NVIDIA apex", ", ".join(apex.available()) or "not there (optional, never needed)"))
    free = shutil.disk_usage(".").free / 2**30
    rows.append(("free disk here", f"{free:.1f} GiB"))
    return rows


def remedies() -> list[str]:
    """One line for each thing that is missing, with the command that fixes it."""
    lines = []
    missing = [name for name in CORE if version(name) is None]
    if missing:
        lines.append(f"missing {', '.join(missing)}: pip install -c constraints.txt {' '.join(missing)}")
    for extra, (module, use) in EXTRAS.items():
        if importlib.util.find_spec(module) is None:
            lines.append(f"{use} needs {module}: pip install 'bigbatch[{extra}]'")
    if shutil.which("c++") is None and shutil.which("g++") is None:
        lines.append(
            "no C++ compiler: the pure PyTorch path is used; apt-get install g++ (or your system's equivalent)"
        )
    return lines


def main(argv: list[str]) -> int:
    build_parser().parse_args(argv)
    for what, finding in describe():
        print(f"{what:16} {finding}")
    problems = remedies()
    print("\n".join(["", "to fix:", *(f"  {line}" for line in problems)]) if problems else "\nnothing is missing")
    return 0
