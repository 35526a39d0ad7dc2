"""`bigbatch transfer`: a trained model and labelled texts -> probe, best unit, baselines, report.html."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..data.labelled import LabelledData
    from ..sentiment.transfer import TransferResult
    from ..sentiment.transfer_heads import HeadResult
    from ..training.checkpoint import LoadedModel

DESCRIPTION = """Transfer a trained model to a classification task: read labelled texts with it, fit an L1 probe on its state and
a threshold on its best single unit, and score both on test data beside TF-IDF and the majority class.

  bigbatch transfer --run-dir runs/mine --train train.csv --val val.csv --test test.csv
  bigbatch transfer --run-dir runs/mine --train reviews.jsonl --test new.txt --task shop --text-key body --label-key stars
  bigbatch transfer --run-dir runs/mine --train a.csv --test b.csv --task emotion --label-keys anger,joy,fear
  bigbatch transfer --run-dir runs/mine --train a.csv --test b.csv --task stars --label-key stars --kind regression

Everything is fitted on --train; C and the unit are chosen on --val (a part of --train, cut off by --seed, if it is not
given); --test is scored once. A test file without labels gives predictions only. Written into the run folder:
results/TASK-*.json and .predictions.csv, probe/TASK.*, plots/TASK-*.png, report.html."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch transfer", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--run-dir", required=True, help="run folder of bigbatch train")
    add(
        "--train",
        required=True,
        nargs="+",
        metavar="FILE",
        help="labelled texts: csv, tsv, json, jsonl, parquet; plain, .gz, .zst",
    )
    add(
        "--val",
        nargs="+",
        metavar="FILE",
        help="labelled texts to choose C and the unit on (default: a part of --train)",
    )
    add("--test", required=True, nargs="+", metavar="FILE", help="texts to score; labels optional")
    add("--text-key", metavar="COLUMN", help="column of the text; guessed and printed if not given")
    add("--label-key", metavar="COLUMN", help="column of the label; guessed and printed if not given")
    add("--task", default="sentiment", metavar="NAME", help="name of the task in file names (default: sentiment)")
    add("--which", choices=("best", "latest"), default="best", help="which checkpoint (default: best)")
    add("--state", choices=("cell", "hidden"), default="cell", help="which state is the feature (default: cell)")
    add("--transform", choices=("raw", "tanh"), default="raw", help="of the state (default: raw)")
    add("--layer", type=int, default=-1, help="layer of a stack, 0 is the first (default: -1, the last)")
    add(
        "--features", choices=("last", "mean", "max"), default="last",
        help="the state after the last byte, or its mean or maximum over all bytes (default: last)",
    )  # fmt: skip
    add("--batch-size", type=int, default=128, help="texts read at once; speed only (default: 128)")
    add(
        "--val-fraction",
        type=float,
        default=0.1,
        help="part of --train cut off where --val is not given (default: 0.1)",
    )
    add("--seed", type=int, default=42, help="of that cut and of the solver (default: 42)")
    add(
        "--on-bad-row",
        choices=("skip", "error"),
        default="skip",
        help="a row without text or label (default: skip and count)",
    )
    add(
        "--int8",
        action="store_true",
        help="read with recurrent weights in eight bits: faster on a CPU with AVX512-VNNI; features are near, not equal",
    )
    add("--device", default="auto", help="cpu, cuda or auto")
    add("--no-cache", action="store_true", help="do not keep features in RUN/cache")
    targets = parser.add_argument_group("what is predicted")
    targets.add_argument(
        "--kind", choices=("classes", "regression"), default="classes",
        help="one class for each text, or a number by ridge regression (default: classes)",
    )  # fmt: skip
    targets.add_argument(
        "--label-keys", metavar="A,B,...", type=lambda names: tuple(name.strip() for name in names.split(",")),
        help="several labels for each text: their columns, which hold 0 or 1",
    )  # fmt: skip
    targets.add_argument(
        "--metric", choices=("f1", "mcc", "jaccard", "accuracy"), default="f1",
        help="with --label-keys: what thresholds maximise on validation (default: f1)",
    )  # fmt: skip
    more = parser.add_argument_group("more about a result")
    more.add_argument(
        "--calibrate", nargs="?", const="platt", default="none", choices=("platt", "temperature"),
        help="correct the probabilities on validation data (alone: platt)",
    )  # fmt: skip
    more.add_argument(
        "--label-efficiency", nargs="?", const=5, type=int, metavar="DRAWS",
        help="accuracy over the number of training labels: table and picture (alone: 5 draws of each number)",
    )  # fmt: skip
    more.add_argument(
        "--units-k", nargs="+", type=int, metavar="K",
        help="probes on the K best and on K random units, and without the best single one",
    )  # fmt: skip
    more.add_argument(
        "--compare", metavar="RESULT",
        help="results/*.json of another transfer on the same test texts: paired difference and McNemar's test",
    )  # fmt: skip
    return parser


def check_options(args: argparse.Namespace) -> None:
    """Raises `ValueError` for options that do not go together."""
    numbers, several = args.kind == "regression", args.label_keys is not None
    if numbers and several:
        raise ValueError("--kind regression and --label-keys were both given; choose one")
    if several and args.label_key is not None:
        raise ValueError("--label-key and --label-keys were both given; choose one")
    if numbers and args.calibrate != "none":
        raise ValueError("--calibrate is for probabilities; --kind regression has none")
    extras = {
        "--label-efficiency": args.label_efficiency,
        "--units-k": args.units_k,
        "--compare": args.compare,
    }
    for name, value in extras.items():
        if value is not None and (numbers or several):
            raise ValueError(f"{name} is for one class a text; leave out --kind regression and --label-keys")


def read_part(args: argparse.Namespace, paths: list[str], train: LabelledData | None, unlabelled: bool) -> LabelledData:
    """One part as the options say; `train` says how the labels of the others are read."""
    from ..data.labelled import load_labelled
    from ..data.targets import load_multilabel, load_numbers

    keys = {"text_key": args.text_key, "on_bad_row": args.on_bad_row, "allow_unlabelled": unlabelled}
    if args.label_keys is not None:
        return load_multilabel(paths, args.label_keys, **keys)
    if args.kind == "regression":
        return load_numbers(paths, label_key=args.label_key, **keys)
    if train is not None:
        keys |= {"classes": train.classes, "stars": train.stars}
    return load_labelled(paths, label_key=args.label_key, **keys)


def read_splits(args: argparse.Namespace) -> tuple[LabelledData, LabelledData, LabelledData]:
    """Train, val and test as the options say; prints what was guessed, dropped or cut off."""
    train = read_part(args, args.train, None, False)
    messages = list(train.messages)
    if args.val:
        val = read_part(args, args.val, train, False)
        messages += val.messages
    else:
        from ..sentiment.transfer import split_validation

        train, val = split_validation(train, args.val_fraction, args.seed)
        messages.append(f"no --val: {len(val):,} of the training texts are set aside for it (seed {args.seed})")
    test = load_test(args, train)
    messages += test.messages
    for part in (train, val, test):
        skipped = part.report.rows_without_text
        if skipped and (part is not val or args.val):
            messages.append(
                f"{skipped:,} rows without text skipped in {', '.join(str(p) for p, _ in part.report.files)}"
            )
    for message in dict.fromkeys(messages):
        print(message)
    return train, val, test


def load_test(args: argparse.Namespace, train: LabelledData) -> LabelledData:
    """The test part. Its label columns may be missing, then it is unlabelled; a named text column may not."""
    from ..data.targets import load_texts

    try:
        return read_part(args, args.test, train, True)
    except ValueError as error:
        named = [key for key in (args.label_key, *(args.label_keys or ())) if key is not None]
        missing = [key for key in named if f"no column {key!r} for the label" in str(error)]
        if not missing:
            raise
    test = load_texts(args.test, args.text_key, args.on_bad_row)
    message = f"no column {missing[0]!r} in the test data: taken as unlabelled"
    return replace(test, messages=[*test.messages, message])


def transfer_classes(
    args: argparse.Namespace, loaded: LoadedModel, run_dir: Path, parts: tuple[LabelledData, ...]
) -> TransferResult:
    """The transfer to one class a text, with what else was asked for, printed."""
    from ..sentiment.compare import compare_results, comparison_line, write_comparison
    from ..sentiment.label_efficiency import label_efficiency, write_curve
    from ..sentiment.transfer import run_transfer
    from ..sentiment.unit_sets import score_unit_sets, unit_sets_table, write_unit_sets

    train, val, test = parts
    result = run_transfer(
        loaded, train, val, test, out_dir=run_dir, task=args.task, state=args.state, transform=args.transform,
        layer=args.layer, pooling=args.features, int8=args.int8, calibration=args.calibrate, batch_size=args.batch_size,
        seed=args.seed, cache_dir=None if args.no_cache else run_dir / "cache",
    )  # fmt: skip
    print(result.table())
    probe = result.summary["probe"]
    print(
        f"C = {probe['C']:g} chosen on {len(val):,} validation texts"
        + ("" if probe["converged"] else "; NOT CONVERGED")
    )
    labels = [values for values in result.labels if values is not None]
    if args.units_k is not None:
        best = result.unit.index_ if result.unit else None
        scored = score_unit_sets(result.probe, best, result.features, labels, args.units_k, seed=args.seed)
        print(unit_sets_table(scored))
        print(f"units: {write_unit_sets(scored, result.path, result.summary)}")
    if args.label_efficiency is not None:
        curve = label_efficiency(result.features, labels, seeds=args.label_efficiency, seed=args.seed)
        for point in curve["points"]:
            found = point["probe"]
            print(
                f"{point['labels']:>10,} labels {found['mean']:15.4f}     {found['min']:.4f} - {found['max']:.4f} (range)"
            )
        print(f"curve: {', '.join(str(path) for path in write_curve(curve, result.path, result.summary))}")
    if args.compare:
        other = Path(args.compare)
        comparison = compare_results(result.path, other)
        print(comparison_line(comparison))
        print(f"comparison: {write_comparison(comparison, result.path, other)}")
    return result


def transfer_heads(
    args: argparse.Namespace, loaded: LoadedModel, run_dir: Path, parts: tuple[LabelledData, ...]
) -> HeadResult:
    """The transfer to several labels or a number, printed."""
    from ..sentiment.transfer_heads import run_multilabel, run_regression

    train, val, test = parts
    options = {"state": args.state, "transform": args.transform, "layer": args.layer, "pooling": args.features}
    options |= {"int8": True} if args.int8 else {}
    common: dict[str, Any] = {"out_dir": run_dir, "task": args.task, "options": options, "batch_size": args.batch_size}
    common["cache_dir"] = None if args.no_cache else run_dir / "cache"
    if args.label_keys is None:
        result = run_regression(loaded, train, val, test, **common)
    else:
        result = run_multilabel(
            loaded, train, val, test, metric=args.metric, calibration=args.calibrate, seed=args.seed, **common
        )
    print(result.table())
    return result


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    check_options(args)
    train, val, test = read_splits(args)  # before torch is loaded: a wrong name or column is said at once
    if test.labels is None and (args.label_efficiency is not None or args.units_k or args.compare):
        raise ValueError("--label-efficiency, --units-k and --compare need labels in the --test data, which has none")

    from ..analysis.curves import plot_training
    from ..sentiment.compare import check_result
    from ..sentiment.report import choose_examples, write_report
    from ..training.checkpoint import load_model
    from ..training.distributed import resolve_device
    from ..training.metrics import read_metrics, read_result

    if args.compare:
        check_result(Path(args.compare))
    loaded = load_model(args.run_dir, str(resolve_device(args.device)), args.which)
    run_dir = loaded.path.parent.parent
    print(f"model: {loaded.path}, trained on {loaded.tokens:,} characters")
    if args.label_keys is None and args.kind == "classes":
        result = transfer_classes(args, loaded, run_dir, (train, val, test))
        examples = choose_examples(loaded.model, result)
    else:
        result, examples = transfer_heads(args, loaded, run_dir, (train, val, test)), None
    if (run_dir / "metrics.jsonl").is_file() and read_metrics(run_dir):
        known = read_result(run_dir)
        marks = {"gzip -9": known.get("bpc_gzip"), "order-5 byte model": known.get("bpc_5gram")}
        references = {name: value for name, value in marks.items() if value}
        plot_training(run_dir, run_dir / "plots" / "training.png", references)
    page = write_report(run_dir, examples, f"bigbatch: {Path(run_dir).name}")
    print(f"result: {result.path}\nreport: {page}")
    return 0
