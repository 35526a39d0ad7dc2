"""Training throughput of the mLSTM against the fp32 GEMM rate, torch.nn.LSTM and a per-step autograd loop, in one run.

`python -m bigbatch.benchmarks.throughput` prints a table for the machine it runs on. Everything is a ratio of numbers
measured in the same run, interleaved, best of several rounds; it asserts nothing. FLOPs count forward and backward of
embedding (64), recurrence, output layer: 6 B T (5 H^2 + 5*64 H + 256 H) for the mLSTM, 6 B T (4 H^2 + 4*64 H + 256 H) for
nn.LSTM.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from datetime import date

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..models.config import MLSTMConfig
from ..models.flops import flops_per_token
from ..models.mlstm import MLSTM, mlstm_cell

VOCAB, EMBEDDING = 256, 64


class PerStepLoop(nn.Module):
    """The mLSTM as the paper writes it, one autograd step per byte, with the weights of `model` (norms folded once)."""

    def __init__(self, model: MLSTM) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        layer = self.model.layers[0]
        wx, wh, wmx, wmh = layer.wx(), layer.wh(), layer.wmx(), layer.wmh()  # pyright: ignore
        hidden = tokens.new_zeros((len(tokens), self.model.config.hidden_size), dtype=torch.float32)
        cell, outputs = hidden, []
        embedded = self.model.embedding(tokens)
        for x in embedded.unbind(1):
            hidden, cell = mlstm_cell(x, hidden, cell, wx, wh, wmx, wmh, layer.bias)  # pyright: ignore
            outputs.append(hidden)
        return self.model.output(torch.stack(outputs, 1))


class TorchLSTM(nn.Module):
    """torch.nn.LSTM between the same embedding and output layer."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, hidden_size, batch_first=True)
        self.output = nn.Linear(hidden_size, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.lstm(self.embedding(tokens))[0])


def training_pass(forward: Callable[[Tensor], Tensor], module: nn.Module, tokens: Tensor) -> float:
    """Seconds of one forward and backward pass."""
    start = time.perf_counter()
    logits = forward(tokens[:, :-1])
    F.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1)).backward()
    module.zero_grad(set_to_none=True)
    return time.perf_counter() - start


def gemm_pass(rows: int, hidden_size: int) -> float:
    """Seconds of one (B*T, H) x (H, 4H) product."""
    a, b = torch.randn(rows, hidden_size), torch.randn(hidden_size, 4 * hidden_size)
    start = time.perf_counter()
    torch.mm(a, b)
    return time.perf_counter() - start


def measure(hidden_size: int, batch_size: int, seq_length: int, rounds: int) -> list[tuple[str, float, float, float]]:
    """Rows of (implementation, tokens/s, GFLOP/s, fraction of the GEMM rate) for one size."""
    torch.manual_seed(0)
    config = MLSTMConfig(hidden_size=hidden_size, embedding_size=EMBEDDING)
    ours, lstm = MLSTM(config), TorchLSTM(hidden_size)
    loop = PerStepLoop(ours)
    tokens = torch.randint(0, VOCAB, (batch_size, seq_length + 1))
    passes = {
        "ours": lambda: training_pass(lambda x: ours(x)[0], ours, tokens),
        "per-step loop": lambda: training_pass(loop, loop, tokens),
        "nn.LSTM": lambda: training_pass(lstm, lstm, tokens),
    }
    best = dict.fromkeys([*passes, "gemm"], float("inf"))
    for _ in range(rounds):  # interleaved, so that a slow moment of the machine hits all alike
        best["gemm"] = min(best["gemm"], gemm_pass(batch_size * seq_length, hidden_size))
        for name, run in passes.items():
            best[name] = min(best[name], run())
    count = batch_size * seq_length
    gemm_rate = 2 * count * hidden_size * 4 * hidden_size / best["gemm"] / 1e9
    mlstm_flops = flops_per_token(config)
    lstm_flops = 6 * (4 * hidden_size**2 + 4 * EMBEDDING * hidden_size + VOCAB * hidden_size)
    rows = [("GEMM", float("nan"), gemm_rate, 1.0)]
    for name in passes:
        rate = count * (lstm_flops if name == "nn.LSTM" else mlstm_flops) / best[name] / 1e9
        rows.append((name, count / best[name], rate, rate / gemm_rate))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bigbatch.benchmarks.throughput", description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=["256,128", "512,128", "512,32"], metavar="H,B")
    parser.add_argument("--seq-length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(
        f"fp32, T {args.seq_length}, forward + backward, best of {args.rounds} interleaved rounds, {args.threads} thread(s), "
        f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}, {date.today()}\n"
    )
    print("| H, B | implementation | characters/s | GFLOP/s | of the GEMM rate |\n|---|---|---|---|---|")
    for size in args.sizes:
        hidden_size, batch_size = map(int, size.split(","))
        for name, speed, rate, fraction in measure(hidden_size, batch_size, args.seq_length, args.rounds):
            shown = f"{speed:,.0f}" if speed == speed else ""
            print(f"| {hidden_size}, {batch_size} | {name} | {shown} | {rate:.1f} | {fraction:.2f} |", flush=True)


if __name__ == "__main__":
    main()
