"""`bigbatch evaluate`: held-out bits per character of a trained model, beside yardsticks on the same bytes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from ..data.streams import OrderedStore

DESCRIPTION = """Score a trained model on text it has not seen, in bits per character (bytes).

  bigbatch evaluate --run-dir runs/mine                       the run's own test split
  bigbatch evaluate --run-dir runs/mine --baselines           beside gzip -9 and an order-5 byte model
  bigbatch evaluate --run-dir runs/mine --data other.jsonl    other files, whole

The rule of the number: the bytes in document order are read in contiguous lanes; the state is zero at the start of a lane
and of a shard (100 kB or more), and every byte counts once. The result is added to RUN/result.json."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch evaluate", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run-dir", required=True, help="run folder, or one checkpoint directory in it")
    parser.add_argument(
        "--split", choices=("test", "val"), default="test", help="the run's own split to score (default: test)"
    )
    parser.add_argument("--data", nargs="+", metavar="FILE", help="score these files instead of the run's own split")
    parser.add_argument("--text-key", help="column of the text in --data; guessed and printed if not given")
    parser.add_argument("--which", choices=("best", "latest"), default="best", help="which checkpoint (default: best)")
    parser.add_argument("--lanes", type=int, default=32, help="lanes read side by side (default: 32)")
    parser.add_argument(
        "--seq-length", type=int, default=256, help="window; changes memory, not the result (default: 256)"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument(
        "--baselines", action="store_true",
        help="also gzip -9 and an interpolated order-5 Witten-Bell byte model fitted on the run's training bytes",
    )  # fmt: skip
    return parser


def byte_baselines(train: np.ndarray, heldout: np.ndarray) -> dict[str, float]:
    """bpc of gzip -9 on the held-out bytes, and of an order-5 byte model fitted on `train`."""
    from ..evaluation.byte_models import WittenBell, gzip_bpc

    return {"bpc_gzip": gzip_bpc(heldout), "bpc_5gram": WittenBell(order=5).fit(train).bits_per_byte(heldout)}


def all_bytes(source: OrderedStore) -> np.ndarray:
    """A split as one uint8 array, documents in its order."""
    return source.read(0, source.num_tokens)


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    for name in ("lanes", "seq_length"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(args, name)}: it must be at least 1")
    from ..data.config import DataConfig
    from ..data.streams import OrderedStore
    from ..training.checkpoint import load_model
    from ..training.config import config_from_dict
    from ..training.distributed import resolve_device
    from ..training.evaluate import evaluate_bpc
    from ..training.metrics import read_result, update_result
    from ..training.run import read_config, split_source

    loaded = load_model(args.run_dir, str(resolve_device(args.device)), args.which)
    run_dir = loaded.path.parent.parent
    config = config_from_dict(
        loaded.config if args.data else {**read_config(run_dir), "run_dir": str(run_dir)}
    )  # wherever the folder is now
    if args.data:
        import tempfile

        from ..data.prepare import prepare_store
        from ..data.splits import make_order

        folder = tempfile.TemporaryDirectory(prefix="bigbatch-evaluate-")
        data = DataConfig(paths=args.data, text_key=args.text_key, cleaning=config.data.cleaning)
        store = prepare_store(data, Path(folder.name) / "heldout")
        import numpy as np

        source, what = OrderedStore(store, make_order(store, np.arange(store.num_documents))), ", ".join(args.data)
    else:
        source, what = split_source(config, args.split, loaded.data_hash), f"the {args.split} split of {run_dir}"
    result = evaluate_bpc(loaded.model, source, args.lanes, args.seq_length)
    print(f"{result.bpc:.4f} bits per character over {result.num_targets:,} bytes of {what}")
    print(
        f"  model: {loaded.path}, trained on {loaded.tokens:,} bytes; {result.lanes} lanes, zero state at the start of each"
    )
    values: dict = {
        "bpc": result.bpc,
        "bpc_bytes": result.num_targets,
        "bpc_lanes": result.lanes,
        "bpc_of": what,
        "bpc_trained_bytes": loaded.tokens,
    }
    if args.baselines:
        train = split_source(config, "train", loaded.data_hash)
        values |= byte_baselines(all_bytes(train), all_bytes(source))
        print(f"  gzip -9:        {values['bpc_gzip']:.4f}")
        print(
            f"  order-5 bytes:  {values['bpc_5gram']:.4f}  (Witten-Bell, fitted on the {train.num_tokens:,} training bytes)"
        )
    elif (
        not args.data and read_result(run_dir).get("bpc_of") != what
    ):  # yardsticks of other bytes would stand beside this number
        values |= {"bpc_gzip": None, "bpc_5gram": None}
    # Beside, not over, the score on the run's own held-out text, which the report shows.
    update_result(
        run_dir, {"other_text": {**read_result(run_dir).get("other_text", {}), what: values}} if args.data else values
    )
    return 0
