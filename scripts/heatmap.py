"""`bigbatch heatmap`: texts coloured character by character by a unit, as HTML or PNG."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = """Colour text character by character by the value of one unit after each character.

  bigbatch heatmap "I wanted to like it, but the lid broke." --run-dir runs/mine
  bigbatch heatmap "Not bad." "Not good." --run-dir runs/mine --unit 312 --output unit312.png

Without --unit it is the best single unit that bigbatch transfer found: grey is its threshold, and its sign says which
end is positive. HTML shows the values on hovering and every script; PNG shows what its font has."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch heatmap", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", nargs="+", metavar="TEXT", help="one or more texts")
    parser.add_argument("--run-dir", metavar="RUN", help="run folder with a probe (default: the newest under runs/)")
    parser.add_argument("--task", help="which probe of the run (default: the newest)")
    parser.add_argument("--unit", type=int, help="unit to show, from 0 (default: the best single unit)")
    parser.add_argument(
        "--output", default="heatmap.html", metavar="FILE", help="name in .html or .png (default: heatmap.html)"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    return parser


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    output = Path(args.output)
    if output.suffix not in (".html", ".png"):
        raise ValueError(f"--output {output}: the name must end in .html or .png")
    from ..sentiment.classify import Classifier, find_run
    from ..sentiment.heatmap import fit_scale, heatmap_page, trace_text
    from ..sentiment.probe import write_atomic
    from ..sentiment.visualize import heatmap_png
    from ..training.distributed import resolve_device

    run_dir = Path(args.run_dir) if args.run_dir else find_run()
    classifier = Classifier.load(run_dir, args.task, str(resolve_device(args.device)))
    best, features = classifier.about["unit"], classifier.about["features"]
    if features["layer"] not in (-1, classifier.model.config.num_layers - 1):  # type: ignore[union-attr]
        raise ValueError(f"the probe is on layer {features['layer']}; heatmaps show the last layer only")
    if best is None and args.unit is None:
        raise ValueError(
            f"task {classifier.about['task']!r} has more than two classes and no best unit; name one with --unit"
        )
    unit = args.unit if best is None or args.unit is not None else best["index"]
    # Of another unit nothing is known: its scale is centred on zero and its ends have no meaning.
    known = best if best is not None and unit == best["index"] else None
    probabilities = classifier.predict_proba(args.text)
    traces = []
    for text, row in zip(args.text, probabilities):
        caption = f"{classifier.class_names[row.argmax()]} with probability {row.max():.2f} by the probe on all units"
        traces.append(
            trace_text(
                classifier.model, text, unit, state=features["state"], transform=features["transform"], caption=caption
            )
        )
    if known:
        names = {"negative": classifier.class_names[0], "positive": classifier.class_names[1]}
        scale = fit_scale(traces, known["threshold"], known["sign"], **names)
    else:
        scale = fit_scale(traces, negative="low", positive="high")
    title = f"Unit {unit} of {run_dir.name}" + (" (best single unit)" if known else "")
    if output.suffix == ".png":
        heatmap_png(traces, scale, output, title)
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(output, heatmap_page(traces, scale, title).encode())
    print(output)
    return 0
