"""`bigbatch generate`: text that a trained model writes, freely or with units held at a value."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

DESCRIPTION = """Write text with a trained model, byte by byte, from the start of a review or from a prompt.

  bigbatch generate --run-dir runs/mine --prompt "The lid" --samples 3 --seed 1
  bigbatch generate --run-dir runs/mine --sentiment positive --temperature 0.7 --valid-utf8
  bigbatch generate --run-dir runs/mine --unit 42=1.5 --heatmap written.html

A sample depends on its prompt, its number, the seed and the options, not on what else is written. A prompt is cleaned as
the training text was. --unit holds a unit of the last layer's cell state at a value after each step; --sentiment holds
the best single unit of bigbatch transfer at the mean of the tenth of the class's test texts that lie furthest on its side."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch generate", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run-dir", required=True, metavar="RUN", help="run folder")
    parser.add_argument(
        "--prompt", action="append", metavar="TEXT", help="text to go on from; may be repeated (default: a new review)"
    )
    parser.add_argument("--num-bytes", type=int, default=300, help="bytes to write for each sample (default: 300)")
    parser.add_argument("--samples", type=int, default=1, help="samples of each prompt (default: 1)")
    parser.add_argument(
        "--temperature", type=float, default=1.0, help="below 1 safer, above 1 wilder, 0 greedy (default: 1)"
    )
    parser.add_argument("--top-k", type=int, default=0, help="only the k most probable bytes (default: 0, all)")
    parser.add_argument(
        "--top-p", type=float, default=1.0, help="only the most probable bytes up to this probability (default: 1, all)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    parser.add_argument(
        "--unit", action="append", default=[], metavar="UNIT=VALUE", help="hold a unit at a value; may be repeated"
    )
    parser.add_argument(
        "--sentiment", metavar="CLASS", help="hold the best unit for a class: positive or negative, say"
    )
    parser.add_argument("--task", help="the probe that --sentiment and --heatmap go by (default: the newest)")
    parser.add_argument("--valid-utf8", action="store_true", help="write whole characters of UTF-8 and nothing else")
    parser.add_argument(
        "--heatmap", metavar="FILE",
        help="also a page (.html) or picture (.png), coloured by the held units or by the best one: how the model reads "
        "what it wrote, with nothing held",
    )  # fmt: skip
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    return parser


def prompt_bytes(text: str, cleaning: str) -> bytes:
    """A prompt as the beginning of a document: cleaned as in training, without what follows a review's last word.

    Raises:
        ValueError: A prompt without any byte.
    """
    from ..data.cleaning import CLEANERS, SUFFIX

    data = CLEANERS[cleaning](text)
    if cleaning == "reviews":
        # The space at the end says that the word is complete, which only a prompt that ends in one means.
        return data if text.strip() and text[-1:].isspace() else data[: -len(SUFFIX)]
    if not data:
        raise ValueError("the prompt is empty: this run's text was not cleaned, so --prompt needs at least one byte")
    return data


def write_texts(prompts: list[str], written: list[list[bytes]]) -> None:
    """Prints the samples of each prompt; bytes that are no UTF-8 leave as they are."""
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
    several = sum(map(len, written)) > 1
    for number, (prompt, samples) in enumerate(zip(prompts, written), 1):
        for sample, data in enumerate(samples, 1):
            if several:
                print(f"--- prompt {number}, sample {sample}")
            print(prompt + data.decode(errors="surrogateescape"))


def write_heatmap(
    path: Path, model: nn.Module, texts: list[bytes], units: list[int], about: dict[str, Any] | None, title: str
) -> None:
    """The texts as the model reads them from their start, coloured by units."""
    from ..sentiment.heatmap import trace_units
    from ..sentiment.unit_panels import UnitMeaning, unit_panels, write_panels

    meaning = UnitMeaning.of_probe(about) if about else None
    if not units and meaning is None:
        raise ValueError("--heatmap: there is no best single unit to colour by; hold a unit with --unit")
    units = units or [meaning.unit] if meaning else units
    traces = [trace_units(model, data, units, caption=f"Text {number}") for number, data in enumerate(texts, 1)]
    write_panels(unit_panels(units, traces, meaning), path, title)


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    heatmap = Path(args.heatmap) if args.heatmap else None
    if heatmap:
        from .heatmap import check_output

        check_output("--heatmap", heatmap)
    if args.samples < 1:
        raise ValueError(f"--samples is {args.samples}: it must be at least 1")
    from ..inference.decode import decode
    from ..inference.sampling import Sampling
    from ..sentiment.classify import load_probed
    from ..sentiment.hold import class_value, hold_units, parse_held
    from ..training.checkpoint import load_model
    from ..training.distributed import resolve_device

    sampling = Sampling(args.temperature, args.top_k, args.top_p, args.valid_utf8)
    held = parse_held(args.unit)
    run_dir, device = Path(args.run_dir), str(resolve_device(args.device))
    about = None
    if args.sentiment or args.task or (heatmap and not held):
        loaded, _, about = load_probed(run_dir, args.task, device)
    else:
        loaded = load_model(run_dir, device)
    if args.sentiment:
        assert about is not None
        found = class_value(run_dir, about, args.sentiment)
        held |= parse_held([*args.unit, f"{found.unit}={found.value!r}"])
        print(
            f"unit {found.unit} held at {found.value:.4g}, the mean of {found.num_texts} texts of class {found.class_name}",
            file=sys.stderr,
        )
    hook = hold_units(held, loaded.model.config.hidden_size) if held else None  # type: ignore[union-attr]
    cleaning = loaded.config.get("data", {}).get("cleaning", "reviews")
    prompts = args.prompt or [""]
    starts = [prompt_bytes(prompt, cleaning) for prompt in prompts]
    written = [
        decode(
            loaded.model,
            [start] * args.samples,
            args.num_bytes,
            sampling,
            seed=args.seed,
            after_step=hook,
            progress=True,
        )
        for start in starts
    ]
    if heatmap:
        texts = [start + data for start, samples in zip(starts, written) for data in samples]
        write_heatmap(
            heatmap, loaded.model, texts, list(held), about, f"Written by {run_dir.name}, read with nothing held"
        )
        print(heatmap, file=sys.stderr)
    write_texts([start.decode(errors="surrogateescape").lstrip("\n ") for start in starts], written)
    return 0
