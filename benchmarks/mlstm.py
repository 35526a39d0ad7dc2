"""Training speed of the mLSTM against the fp32 GEMM rate, torch.nn.LSTM (oneDNN) and a per-step autograd loop, in one run.

`python -m bigbatch.benchmarks.mlstm` prints a table for the machine it runs on, `--json` a list of objects. Everything is a
ratio of numbers measured in the same run: rounds are interleaved, after one that is not counted, and the median counts.
It asserts nothing.

FLOPs of forward and backward of embedding (64), recurrence and output layer: 6 B T (5 H^2 + 256 H) for the mLSTM, ours and
the loop, and 6 B T (4 H^2 + 256 H) for nn.LSTM. Input projections count zero, because a table of 256 rows replaces them in
ours; the column "with projections" counts them in full, 6 B T * 64 * 5 H (4 H for nn.LSTM) more. The GEMM is one product
(B T, H) x (H, 4H). The loop is the cell of the paper, one autograd step a byte, with weights normalised once a window.

`--shares` tells instead where the time of ours goes, part by part.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..models import mlstm_cpu
from ..models.config import MLSTMConfig
from ..models.mlstm import MLSTM, mlstm_cell

VOCAB, EMBEDDING = 256, 64
GPU_SIZES = ("1024,128", "4096,128", "4096,256", "8192,256")
SIZES = ("256,128", "512,128", "1024,128", "512,32", "1024,32")


@dataclass(frozen=True)
class Row:
    """One measurement; `gflops` and `fraction_of_gemm` by the rule above, projections at zero."""

    impl: str
    hidden_size: int
    batch_size: int
    seq_length: int
    tokens_per_second: float
    gflops: float
    fraction_of_gemm: float


class PerStepLoop(nn.Module):
    """The mLSTM as the paper writes it, one autograd step per byte, with the weights of `model` (norms folded once)."""

    def __init__(self, model: MLSTM) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        layer = self.model.layers[0]
        wx, wh, wmx, wmh = layer.wx(), layer.wh(), layer.wmx(), layer.wmh()  # pyright: ignore
        dtype = self.model.embedding.weight.dtype
        wx, wh, wmx, wmh = (weight.to(dtype) for weight in (wx, wh, wmx, wmh))
        hidden = tokens.new_zeros((len(tokens), self.model.config.hidden_size), dtype=dtype)
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
    start = clock(tokens.device)
    logits = forward(tokens[:, :-1])
    F.cross_entropy(logits.reshape(-1, VOCAB).float(), tokens[:, 1:].reshape(-1)).backward()
    module.zero_grad(set_to_none=True)
    return clock(tokens.device) - start


def clock(device: torch.device) -> float:
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Gemm:
    """One (rows, H) x (H, 4H) product, into memory that is there already."""

    def __init__(self, rows: int, hidden_size: int, place: dict[str, Any]) -> None:
        self.a, self.b = torch.randn(rows, hidden_size, **place), torch.randn(hidden_size, 4 * hidden_size, **place)
        self.out = torch.mm(self.a, self.b)

    def __call__(self) -> float:
        """Seconds it takes."""
        start = clock(self.out.device)
        torch.mm(self.a, self.b, out=self.out)
        return clock(self.out.device) - start


def flops_per_token(impl: str, hidden_size: int, projections: bool = False) -> int:
    """Forward and backward, by the rule at the top."""
    blocks = 4 if impl == "nn_lstm" else 5
    inputs = blocks * EMBEDDING * hidden_size if projections else 0
    return 6 * (blocks * hidden_size**2 + inputs + VOCAB * hidden_size)


def measure(
    hidden_size: int,
    batch_size: int,
    seq_length: int,
    rounds: int,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[float, list[Row]]:
    """The GEMM rate in GFLOP/s, and a row for each implementation."""
    torch.manual_seed(0)
    place: dict[str, Any] = {"device": device, "dtype": dtype}
    ours = MLSTM(MLSTMConfig(hidden_size=hidden_size, embedding_size=EMBEDDING)).to(**place)
    loop, lstm = PerStepLoop(ours), TorchLSTM(hidden_size).to(**place)
    tokens = torch.randint(0, VOCAB, (batch_size, seq_length + 1), device=device)
    passes: dict[str, Callable[[], float]] = {
        "gemm": Gemm(batch_size * seq_length, hidden_size, place),
        "ours": lambda: training_pass(lambda x: ours(x)[0], ours, tokens),
        "per_step_loop": lambda: training_pass(loop, loop, tokens),
        "nn_lstm": lambda: training_pass(lstm, lstm, tokens),
    }
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(rounds + 1):  # interleaved, so that a slow moment of the machine hits all alike
        for name, run in passes.items():
            seconds[name].append(run())
    median = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    count = batch_size * seq_length
    gemm = 8 * count * hidden_size**2 / median.pop("gemm") / 1e9
    rows = []
    for name, time_taken in median.items():
        rate = count * flops_per_token(name, hidden_size) / time_taken / 1e9
        rows.append(Row(name, hidden_size, batch_size, seq_length, count / time_taken, rate, rate / gemm))
    return gemm, rows


PARTS = {
    "forward_steps": "forward through time",
    "steps": "backward through time",
    "add_weight_gradient": "weight gradients",
    "add_to_table": "gradient of the input table",
}


def shares(hidden_size: int, batch_size: int, seq_length: int, rounds: int) -> dict[str, float]:
    """Seconds of each part of a pass of ours, on average; the compiled steps must be there."""
    spent = dict.fromkeys(PARTS, 0.0)

    def timed(owner: Any, name: str) -> Any:
        original = getattr(owner, name)

        def run(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = original(*args, **options)
            spent[name] += time.perf_counter() - start
            return result

        return patch.object(owner, name, run)

    torch.manual_seed(0)
    model = MLSTM(MLSTMConfig(hidden_size=hidden_size, embedding_size=EMBEDDING))
    tokens = torch.randint(0, VOCAB, (batch_size, seq_length + 1))
    training_pass(lambda x: model(x)[0], model, tokens)
    with ExitStack() as stack:
        for name in PARTS:
            stack.enter_context(timed(mlstm_cpu if name == "forward_steps" else mlstm_cpu.Backward, name))
        whole = sum(training_pass(lambda x: model(x)[0], model, tokens) for _ in range(rounds))
    found = {label: spent[name] / rounds for name, label in PARTS.items()}
    return {**found, "output layer, loss, weight norm, the rest": whole / rounds - sum(found.values())}


def print_shares(sizes: list[tuple[int, int]], seq_length: int, rounds: int) -> None:
    print("| H, B | part | ms | share |\n|---|---|---|---|")
    for hidden_size, batch_size in sizes:
        parts = shares(hidden_size, batch_size, seq_length, rounds)
        for label, seconds in parts.items():
            share = seconds / sum(parts.values())
            print(f"| {hidden_size}, {batch_size} | {label} | {seconds * 1e3:.1f} | {share:.0%} |", flush=True)


def machine(args: argparse.Namespace) -> str:
    if args.device.startswith("cuda"):
        return torch.cuda.get_device_name(args.device)
    return f"{args.threads} thread(s), {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bigbatch.benchmarks.mlstm", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--sizes", nargs="+", default=[], metavar="H,B")
    parser.add_argument("--seq-length", type=int, default=0, help="steps of a window (default: 64, on a GPU 256)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=5, help="of which the median counts (default: 5)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--shares", action="store_true", help="where the time goes")
    parser.add_argument("--json", action="store_true", help="a list of objects instead of a table")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    names = args.sizes or (GPU_SIZES if args.device.startswith("cuda") else SIZES)
    sizes = [(int(h), int(b)) for h, b in (name.split(",") for name in names)]
    steps = args.seq_length or (256 if args.device.startswith("cuda") else 64)
    where = (steps, args.rounds, args.device, getattr(torch, args.dtype))
    if args.json:
        found = [row for h, b in sizes for row in measure(h, b, *where)[1]]
        print(json.dumps([asdict(row) for row in found], indent=1))
        return
    if args.shares:
        print_shares(sizes, steps, args.rounds)
        return
    print(
        f"{args.dtype}, T {steps}, forward + backward, median of {args.rounds} interleaved rounds, {machine(args)}, "
        f"torch {torch.__version__}, {date.today()}\n"
    )
    print("| H, B | implementation | characters/s | GFLOP/s | of the GEMM rate | with projections |")
    print("|---|---|---|---|---|---|")
    for hidden_size, batch_size in sizes:
        gemm, rows = measure(hidden_size, batch_size, *where)
        print(f"| {hidden_size}, {batch_size} | GEMM |  | {gemm:.1f} | 1.00 | |", flush=True)
        for row in rows:
            more = flops_per_token(row.impl, hidden_size, True) / flops_per_token(row.impl, hidden_size)
            print(
                f"| {hidden_size}, {batch_size} | {row.impl} | {row.tokens_per_second:,.0f} | {row.gflops:.1f} | "
                f"{row.fraction_of_gemm:.2f} | {row.fraction_of_gemm * more:.2f} |", flush=True,
            )  # fmt: skip
        ours, loop, lstm = rows
        print(
            f"| {hidden_size}, {batch_size} | ours against | | | {ours.gflops / lstm.gflops:.2f} of nn_lstm | "
            f"{ours.gflops / loop.gflops:.2f} of per_step_loop |", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
