"""Speed of featurising: sentences per second of `featurize` against padding every batch to its longest text.

Run `python -m bigbatch.benchmarks.featurize` (512 units, 2,000 texts with the lengths of SST sentences; `--data FILE`
for texts of one's own, `--hidden-size`, `--threads`). The reference takes the texts in the order in which they come,
pads each batch to its longest text and reads it in one call, as the usual script does.

Both are timed in turns in one run and the best of each counts. The GEMM rate is measured in the same run, on the
matrix product that a step is made of; "of GEMM" is the rate of the recurrent products of real bytes against it, so that
padding counts as idle time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..data.cleaning import clean_review
from ..models import mlstm_cpu
from ..models.build import build_model
from ..models.config import MLSTMConfig
from ..models.recurrent import RecurrentLanguageModel
from ..sentiment.featurize import featurize

# Bytes of cleaned SST training sentences at these quantiles (6,920 sentences, mean 104).
QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
LENGTHS = (6, 17, 29, 64, 100, 137, 193, 235, 258)


def sst_like_texts(count: int, seed: int = 0) -> list[str]:
    """Made-up lower-case texts with the length distribution of SST."""
    generator = np.random.default_rng(seed)
    lengths = np.interp(generator.random(count), QUANTILES, LENGTHS).astype(int) - 3
    letters = np.frombuffer(b"etaoinshrdlu cmfw yp", dtype=np.uint8)
    return [bytes(generator.choice(letters, n)).decode().strip() or "x" for n in lengths]


def padded(model: RecurrentLanguageModel, texts: list[str], batch_size: int) -> np.ndarray:
    """The reference: batches in input order, each padded to its longest text."""
    rows = []
    with torch.inference_mode():
        for start in range(0, len(texts), batch_size):
            batch = [
                torch.frombuffer(bytearray(clean_review(text)), dtype=torch.uint8)
                for text in texts[start : start + batch_size]
            ]
            lengths = torch.tensor([len(row) for row in batch])
            _, state, *_ = model.encode(torch.nn.utils.rnn.pad_sequence(batch, batch_first=True), lengths=lengths)
            rows.append(state.cell[-1].numpy())
    return np.concatenate(rows)


def gemm_flops(rows: int, hidden_size: int, seconds: float = 1.0) -> float:
    """Best rate of (rows, H) x (H, 4H), the larger product of a step, in FLOP/s."""
    left, right = torch.randn(rows, hidden_size), torch.randn(4 * hidden_size, hidden_size).t()
    out, best, stop = torch.empty(rows, 4 * hidden_size), float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < stop:
        start = time.perf_counter()
        for _ in range(8):
            torch.mm(left, right, out=out)
        best = min(best, (time.perf_counter() - start) / 8)
    return 2 * rows * hidden_size * 4 * hidden_size / best


def best_seconds(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Best time of each function, called in turns so that a busy moment hits all alike."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def steps_computed(model: RecurrentLanguageModel, function: Callable[[], object]) -> int:
    """Steps times rows that the model is asked for while `function` runs, padding included."""
    encode, total = model.encode, 0

    def counting(tokens: torch.Tensor, **options: Any) -> Any:
        nonlocal total
        total += tokens.numel()
        return encode(tokens, **options)

    model.encode = counting  # type: ignore[method-assign]
    try:
        function()
    finally:
        del model.encode  # the method of the class again
    return total


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", nargs="+", metavar="FILE", help="texts to read (default: made-up ones with SST's lengths)"
    )
    parser.add_argument("--texts", type=int, default=2000, help="how many texts (default: 2000)")
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    torch.set_num_threads(args.threads)
    if args.data:
        from ..data.sources import iter_rows

        texts = [row.text for row, _ in zip(iter_rows(args.data), range(args.texts))]
    else:
        texts = sst_like_texts(args.texts)
    torch.manual_seed(0)
    model = build_model(MLSTMConfig(hidden_size=args.hidden_size)).eval()
    functions: dict[str, Callable[[], object]] = {
        "padded to the longest": lambda: padded(model, texts, args.batch_size),
        "featurize": lambda: featurize(model, texts, batch_size=args.batch_size, progress=False),
    }
    if mlstm_cpu.has_int8():
        functions["featurize, int8"] = lambda: featurize(
            model, texts, batch_size=args.batch_size, progress=False, int8=True
        )
    seconds = best_seconds(functions, args.repeats)
    rate = gemm_flops(args.batch_size, args.hidden_size)
    num_bytes = sum(len(clean_review(text)) for text in texts)
    flops = 2 * 5 * args.hidden_size**2 * num_bytes  # wmh h and wh m of one layer
    difference = np.abs(padded(model, texts, args.batch_size) - featurize(model, texts, progress=False)).max()
    print(
        f"{len(texts):,} texts, {num_bytes / len(texts):.0f} bytes on average; {args.hidden_size} units, batch "
        f"{args.batch_size}, {args.threads} thread(s), fp32; GEMM {rate / 1e9:.0f} GFLOP/s; best of {args.repeats}"
    )
    print(f"{'':24}{'sentences/s':>12}{'kB/s':>9}{'of GEMM':>9}{'padding':>9}")
    shares = {name: 1 - num_bytes / steps_computed(model, function) for name, function in functions.items()}
    for name, value in seconds.items():
        print(
            f"{name:24}{len(texts) / value:12.0f}{num_bytes / value / 1e3:9.0f}{flops / value / rate:9.1%}{shares[name]:9.1%}"
        )
    ratio = seconds["padded to the longest"] / seconds["featurize"]
    print(f"featurize is {ratio:.2f} times as fast; largest difference of a feature {difference:.1e}")
    if "featurize, int8" in seconds:
        exact, rounded = (featurize(model, texts, progress=False, int8=int8) for int8 in (False, True))
        error = np.linalg.norm(rounded - exact) / np.linalg.norm(exact)
        gain = seconds["featurize"] / seconds["featurize, int8"]
        print(f"int8 is {gain:.2f} times as fast again; features differ by {error:.1%} (norm of the difference)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
