"""Decoding byte by byte with the state carried over: bytes per second for one stream and for 64.

`python -m bigbatch.benchmarks.decoding` reads one byte a step, samples the next from its logits and feeds it back, as a
generator does; weights are prepared once (`RecurrentLanguageModel.frozen`). "Again each step" prepares them at every step
instead. Best of several rounds; GEMM counts one (B, H) x (H, 4H) product, which at B = 1 is bound by reading the weights.
"""

from __future__ import annotations

import argparse
import platform
import time
from contextlib import nullcontext
from datetime import date

import torch

from ..models import mlstm_cpu
from ..models.config import MLSTMConfig
from ..models.mlstm import MLSTM


def decode(model: MLSTM, streams: int, steps: int, mode: str) -> float:
    """Bytes per second of all streams together."""
    torch.manual_seed(0)
    tokens, state = torch.zeros((streams, 1), dtype=torch.long), None
    with torch.inference_mode(), nullcontext() if mode == "again each step" else model.frozen(mode == "int8"):
        start = 0.0
        for step in range(steps + 8):
            if step == 8:  # the first prepare the weights
                start = time.perf_counter()
            logits, state = model(tokens, state)
            tokens = torch.multinomial(logits[:, -1].softmax(dim=-1), 1)
        return streams * steps / (time.perf_counter() - start)


def gemm_rate(rows: int, hidden_size: int) -> float:
    """GFLOP/s of (rows, H) x (H, 4H)."""
    a, b = torch.randn(rows, hidden_size), torch.randn(hidden_size, 4 * hidden_size)
    out, best = torch.mm(a, b), float("inf")
    for _ in range(50):
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        best = min(best, time.perf_counter() - start)
    return 8 * rows * hidden_size**2 / best / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bigbatch.benchmarks.decoding", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--hidden-sizes", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(
        f"fp32, {args.threads} thread(s), best of {args.rounds}, {platform.machine()} "
        f"{torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}, {date.today()}\n"
    )
    modes = ["again each step", "frozen", *(["int8"] if mlstm_cpu.has_int8() else [])]
    print("| H, streams | weights | bytes/s | GFLOP/s | of the GEMM rate |\n|---|---|---|---|---|")
    for hidden_size in args.hidden_sizes:
        model = MLSTM(MLSTMConfig(hidden_size=hidden_size)).eval()
        for streams in args.streams:
            gemm = gemm_rate(streams, hidden_size)
            best = dict.fromkeys(modes, 0.0)
            for _ in range(args.rounds):
                for mode in modes:
                    best[mode] = max(best[mode], decode(model, streams, args.steps, mode))
            for mode, speed in best.items():
                rate = speed * 2 * (5 * hidden_size**2 + 256 * hidden_size) / 1e9
                print(
                    f"| {hidden_size}, {streams} | {mode} | {speed:,.0f} | {rate:.1f} | {rate / gemm:.2f} |", flush=True
                )


if __name__ == "__main__":
    main()
