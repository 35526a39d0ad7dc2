"""Data parallelism on one machine: R ranks of one thread against one process of R threads, and what the exchange costs.

`python -m bigbatch.benchmarks.data_parallel` trains the mLSTM (1,024 units, 128 rows in all, windows of 256 bytes) both ways,
in turns, and prints characters per second of each, their ratio, and the share of the gradient exchange: the time of a step
with it less that of a step without. Forward, backward and exchange count; the optimizer's step, which is the same for all,
does not.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from datetime import date
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from ..models.config import MLSTMConfig
from ..models.mlstm import MLSTM

VOCAB = 256


def run_steps(rank: int, world: int, threads: int, sizes: tuple[int, int, int], path: str, pipe: Connection) -> None:
    """One rank: answers each "go" with the seconds of a step, or of one without exchange; ends at anything else."""
    torch.set_num_threads(threads)
    hidden_size, batch_size, seq_length = sizes
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(rank)
    model = MLSTM(MLSTMConfig(hidden_size=hidden_size))
    module = DistributedDataParallel(model, gradient_as_bucket_view=True) if world > 1 else model
    tokens = torch.randint(0, VOCAB, (batch_size // world, seq_length + 1))

    def step() -> float:
        if world > 1:
            dist.barrier()
        start = time.perf_counter()
        logits = module(tokens[:, :-1])[0].transpose(0, 1)
        F.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].t().reshape(-1)).backward()
        seconds = time.perf_counter() - start
        module.zero_grad(set_to_none=world == 1)
        return seconds

    while (command := pipe.recv()) != "end":
        if command == "alone" and isinstance(module, DistributedDataParallel):
            with module.no_sync():
                pipe.send(step())
        else:
            pipe.send(step())
    if world > 1:
        dist.destroy_process_group()
    os._exit(0)


class Layout:
    """Processes that wait for their turn."""

    def __init__(self, world: int, threads: int, sizes: tuple[int, int, int], folder: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = f"{world} rank(s) x {threads} thread(s)"
        self.pipes, self.seconds, self.alone = [], [], []
        path = os.path.join(folder, f"ranks{world}")
        for rank in range(world):
            ours, theirs = context.Pipe()
            arguments = (rank, world, threads, sizes, path, theirs)
            context.Process(target=run_steps, args=arguments, daemon=True).start()
            self.pipes.append(ours)

    def step(self, command: str) -> float:
        """Seconds of the slowest rank."""
        for pipe in self.pipes:
            pipe.send(command)
        return max(pipe.recv() for pipe in self.pipes)

    def end(self) -> None:
        for pipe in self.pipes:
            pipe.send("end")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bigbatch.benchmarks.data_parallel", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=128, help="rows of all ranks together")
    parser.add_argument("--seq-length", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="of which the median counts (default: 5)")
    args = parser.parse_args()
    sizes = (args.hidden_size, args.batch_size, args.seq_length)
    with tempfile.TemporaryDirectory() as folder:
        layouts = [Layout(world, args.ranks // world, sizes, folder) for world in (1, args.ranks)]
        for turn in range(args.rounds + 1):  # the first does not count
            for layout in layouts:
                seconds, alone = layout.step("go"), layout.step("alone")
                if turn:
                    layout.seconds.append(seconds)
                    layout.alone.append(alone)
        for layout in layouts:
            layout.end()
    print(
        f"fp32, H {sizes[0]}, B {sizes[1]}, T {sizes[2]}, forward + backward, median of {args.rounds}, {platform.machine()}, "
        f"torch {torch.__version__}, {date.today()}\n"
    )
    print("| layout | characters/s | of one process | share of the exchange |\n|---|---|---|---|")
    first = statistics.median(layouts[0].seconds)
    for layout in layouts:
        seconds, alone = statistics.median(layout.seconds), statistics.median(layout.alone)
        share = f"{1 - alone / seconds:.1%}" if len(layout.pipes) > 1 else ""
        print(f"| {layout.name} | {sizes[1] * sizes[2] / seconds:,.0f} | {first / seconds:.2f} | {share} |")


if __name__ == "__main__":
    main()
