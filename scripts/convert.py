"""`bigbatch convert`: weights of OpenAI and NVIDIA into a model folder, and a model folder into theirs."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..models.interchange.weights import Weights

DESCRIPTION = """Convert the weights of an mLSTM between bigbatch, OpenAI's arrays and NVIDIA's sentiment-discovery files.

  bigbatch convert --from openai/model --to runs/openai          a folder of 0.npy to 14.npy
  bigbatch convert --from mlstm.pt --to runs/nvidia              a language model or classifier, v0.1 to HEAD
  bigbatch convert --from runs/mine --to mine.pt                 as NVIDIA's transfer.py loads it
  bigbatch convert --from runs/mine --to arrays --to-format openai

What is read is told from the path, and said. Unused and missing keys are errors that name them. Weights, gains and their
order in memory survive a round trip to the bit; what cannot (two biases added, weight norm folded) is said. A converted
model folder is what transfer, classify, heatmap and evaluate --data take as --run-dir, and train as --init-from."""

FORMATS = ("bigbatch", "openai", "nvidia")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch convert", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--from",
        dest="source",
        required=True,
        metavar="PATH",
        help="run folder, checkpoint, folder of arrays, or .pt file",
    )
    add("--to", dest="target", required=True, metavar="PATH", help="new folder or file; nothing is overwritten")
    add(
        "--to-format", choices=FORMATS,
        help="default: nvidia for a name in .pt or .pth, else bigbatch from theirs; needed for openai",
    )  # fmt: skip
    add(
        "--gate-order", choices=("ifoj", "ifgo"),
        help="of a .pt file, where the file does not tell; in writing one: ifgo by default, as their code reads it",
    )  # fmt: skip
    add(
        "--ignore", nargs="+", choices=("classifier", "decoder"), default=[],
        help="classifier: leave out the one beside the model; decoder: do without an output layer (features only)",
    )  # fmt: skip
    add("--fold-weight-norm", action="store_true", help="write plain matrices, each row rounded once: not exact")
    add("--which", choices=("best", "latest"), default="best", help="which checkpoint of a run folder (default: best)")
    return parser


def target_format(target: Path, chosen: str | None, source_kind: str) -> str:
    """What to write.

    Raises:
        ValueError: The name does not say, and no option does.
    """
    if chosen:
        return chosen
    if target.suffix in (".pt", ".pth"):
        return "nvidia"
    if source_kind == "bigbatch":
        raise ValueError(
            f"--to {target}: name a file in .pt for NVIDIA's layout, or give --to-format openai for a folder of arrays"
        )
    return "bigbatch"


def read_own(path: Path, which: str) -> tuple[Weights, dict[str, Any]]:
    """The weights of a run folder or checkpoint, and the samples, tokens and data hash recorded with them.

    Raises:
        ValueError: No model there, a damaged one, or an LSTM.
    """
    from ..models.config import MLSTMConfig
    from ..models.interchange.weights import Weights
    from ..training.checkpoint import load_model

    loaded = load_model(path, which=which)
    config = loaded.model.config
    if not isinstance(config, MLSTMConfig):
        raise ValueError(f"{loaded.path} is of kind {loaded.config['model']['kind']}: only mLSTMs are converted")
    record = {"samples": loaded.samples, "tokens": loaded.tokens, "data_hash": loaded.data_hash}
    return Weights(config, dict(loaded.model.state_dict()), [str(loaded.path)]), record


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    source, target = Path(args.source), Path(args.target)
    from ..models.interchange.formats import read_foreign, recognise, write_foreign
    from ..models.interchange.weights import fold_weight_norm
    from ..training.checkpoint import save_weights

    kind = recognise(source)
    to = target_format(target, args.to_format, kind)
    if args.ignore and kind != "nvidia":
        raise ValueError(f"--ignore is about files of NVIDIA, and {source} is none")
    if args.gate_order and "nvidia" not in (kind, to):
        raise ValueError("--gate-order is about files of NVIDIA; neither --from nor --to is one")
    record: dict[str, Any] = {"samples": 0, "tokens": 0}
    if kind == "bigbatch":
        weights, record = read_own(source, args.which)
    else:
        weights = read_foreign(source, kind, args.gate_order if kind == "nvidia" else None, args.ignore)
    notes = len(weights.notes)
    if args.fold_weight_norm:
        weights = fold_weight_norm(weights)
        print("\n".join(weights.notes[notes:]) or "there is no weight norm to fold")
    if to == "bigbatch":
        record |= {"converted_from": {"file": source.name, "layout": kind, "notes": weights.notes}}
        written = save_weights(target, weights.tensors, {"model": asdict(weights.config)}, record)
        print(f"model folder: {target} ({written.name})")
    else:
        # In one call that reads and writes their files, the option is about what is read.
        write_foreign(weights, target, to, args.gate_order if kind != "nvidia" else None)
        print(f"{to}: {target}")
    return 0
