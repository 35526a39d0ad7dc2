"""`bigbatch heatmap`: texts coloured character by character by units, as HTML or PNG."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = """Colour text character by character by the value of a unit after each character.

  bigbatch heatmap "I wanted to like it, but the lid broke." --run-dir runs/mine
  bigbatch heatmap "Not bad." "Not good." --run-dir runs/mine --unit 312,17 --output units.png

Without --unit it is the best single unit that bigbatch transfer found: grey is its threshold, and its sign says which
end is positive. Several units colour each text in turn, each on a scale of its own. HTML shows the values on hovering
and every script; PNG names in words what its fonts lack."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bigbatch heatmap", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", nargs="+", metavar="TEXT", help="one or more texts")
    parser.add_argument("--run-dir", metavar="RUN", help="run folder with a probe (default: the newest under runs/)")
    parser.add_argument("--task", help="which probe of the run (default: the newest)")
    parser.add_argument(
        "--unit", action="append", metavar="UNIT",
        help="unit to show, from 0; several with commas or by repeating it (default: the best single unit)",
    )  # fmt: skip
    parser.add_argument(
        "--output", default="heatmap.html", metavar="FILE", help="name in .html or .png (default: heatmap.html)"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    return parser


def parse_units(values: list[str]) -> list[int]:
    """Unit numbers from `--unit 3,17 --unit 20`, each once, in that order."""
    numbers = []
    for value in values:
        for part in value.split(","):
            try:
                numbers.append(int(part))
            except ValueError:
                raise ValueError(f"--unit {value}: {part!r} is no unit; units are numbers such as 3 or 3,17") from None
    return list(dict.fromkeys(numbers))


def check_output(option: str, path: Path) -> None:
    """Raises a ValueError for a name that says neither page nor picture."""
    if path.suffix not in (".html", ".png"):
        raise ValueError(f"{option} {path}: the name must end in .html or .png")


def main(argv: list[str]) -> int:
    args = build_parser().parse_args(argv)
    output = Path(args.output)
    check_output("--output", output)
    asked = parse_units(args.unit) if args.unit else None
    from ..sentiment.classify import Classifier, find_run
    from ..sentiment.heatmap import trace_units
    from ..sentiment.unit_panels import UnitMeaning, unit_panels, write_panels
    from ..training.distributed import resolve_device

    run_dir = Path(args.run_dir) if args.run_dir else find_run()
    classifier = Classifier.load(run_dir, args.task, str(resolve_device(args.device)))
    features = classifier.about["features"]
    if features["layer"] not in (-1, classifier.model.config.num_layers - 1):  # type: ignore[union-attr]
        raise ValueError(f"the probe is on layer {features['layer']}; heatmaps show the last layer only")
    meaning = UnitMeaning.of_probe(classifier.about)
    if meaning is None and asked is None:
        raise ValueError(
            f"task {classifier.about['task']!r} has more than two classes and no best unit; name one with --unit"
        )
    units = asked if asked is not None else [meaning.unit] if meaning else []
    traces = []
    for text, row in zip(args.text, classifier.predict_proba(args.text)):
        caption = f"{classifier.class_names[row.argmax()]} with probability {row.max():.2f} by the probe on all units"
        traces.append(
            trace_units(
                classifier.model, text, units, state=features["state"], transform=features["transform"], caption=caption
            )
        )
    panels = unit_panels(units, traces, meaning)
    write_panels(
        panels, output, f"{panels[0].name} of {run_dir.name}" if len(panels) == 1 else f"Units of {run_dir.name}"
    )
    print(output)
    return 0
