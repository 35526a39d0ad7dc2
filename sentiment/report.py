"""report.html: one page of a run folder that shows what was measured, with pictures and coloured reviews.

It reads what the folder holds (result.json, results/*.json, plots/*.png, config.yaml) and the examples handed in, and
leaves out what is not there. Pictures are inlined: the page is one file and loads nothing. Style and layout are
`page.py`.
"""

from __future__ import annotations

import html
import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..data.cleaning import clean_review
from ..training.metrics import read_result
from .heatmap import Scale, Trace, fit_scale, scale_html, text_html, trace_text
from .page import bar_rows, details, figures, interval_rows, page, table
from .probe import write_atomic
from .results import SCHEMA_VERSION
from .transfer import TransferResult
from .transfer_heads import HEADLINES, MULTILABEL_TRANSFER, REGRESSION_TRANSFER

EXAMPLE_BYTES = (60, 500)  # long enough to show a turn, short enough to read
CAPTIONS = {
    "unit-histogram": "The best single unit after the last byte of each test text, by label.",
    "label-efficiency": "Test accuracy over the number of training labels: mean and standard deviation over draws.",
    "probe-weights": "Weights of the L1 probe, one for each unit; those of unused units are exactly zero.",
    "training": "Bits per character while training, over characters read.",
    "precision": "The same small run in fp16 with dynamic loss scaling and in fp32.",
    "loss-scale": "The dynamic loss scale over the run.",
}


@dataclass(frozen=True)
class Examples:
    """Coloured reviews for the page.

    Attributes:
        right: Texts that the probe classified correctly.
        wrong: Texts that it did not.
        scale: Their common colours.
        unit: The unit that colours them.
        task: Where they are from.
    """

    right: list[Trace]
    wrong: list[Trace]
    scale: Scale
    unit: int
    task: str


def choose_examples(model: nn.Module, result: TransferResult, per_group: int = 4) -> Examples | None:
    """Picks test texts and traces the best unit through them.

    Rule: of texts with 60 to 500 bytes, the most confident right ones (each class in turn) and the most confident
    wrong ones; ties in the order of the file. Confident mistakes teach more than doubtful ones.

    Returns:
        None without labels, without a single unit, or when the features are not final states of the last layer.
    """
    test, unit, labels = result.test, result.unit, result.test.labels
    features = result.summary["features"]
    last = result.summary["model"]["config"].get("num_layers", 1) - 1
    if labels is None or unit is None or features["layer"] not in (-1, last) or features["pooling"] != "last":
        return None
    low, high = EXAMPLE_BYTES
    fits = np.array([low <= len(clean_review(text)) <= high for text in test.texts])
    confidence = result.probability.max(axis=1)
    order = np.argsort(-confidence, kind="stable")
    right, wrong = result.predicted == labels, result.predicted != labels
    per_class = [[i for i in order if fits[i] and right[i] and labels[i] == k] for k in range(len(test.classes))]
    turns = range(max(map(len, per_class)))
    chosen_right = [rows[turn] for turn in turns for rows in per_class if turn < len(rows)][:per_group]
    chosen_wrong = [i for i in order if fits[i] and wrong[i]][:per_group]

    def trace(row: int) -> Trace:
        truth, read = test.classes[labels[row]], test.classes[result.predicted[row]]
        caption = f"{truth}, read as {read} with probability {confidence[row]:.2f}"
        return trace_text(
            model,
            test.texts[row],
            unit.index_,
            state=features["state"],
            transform=features["transform"],
            caption=caption,
        )

    traces_right, traces_wrong = [trace(i) for i in chosen_right], [trace(i) for i in chosen_wrong]
    if not traces_right and not traces_wrong:
        return None
    names = {"negative": test.classes[0], "positive": test.classes[1]}
    scale = fit_scale([*traces_right, *traces_wrong], unit.threshold_, unit.sign_, **names)
    return Examples(traces_right, traces_wrong, scale, unit.index_, result.summary["task"])


def write_report(run_dir: Path | str, examples: Examples | None = None, title: str = "bigbatch") -> Path:
    """Writes `report.html` into the run folder.

    Args:
        run_dir: Run folder.
        examples: Coloured reviews; None for none.
        title: Heading and window title.

    Returns:
        The path of the page.
    """
    run_dir = Path(run_dir)
    result, transfers = read_result(run_dir), read_transfers(run_dir)
    heads = [head for kind in (MULTILABEL_TRANSFER, REGRESSION_TRANSFER) for head in read_transfers(run_dir, kind)]
    sections = [
        *_accuracy_sections(transfers),
        *_head_sections(heads),
        *_bpc_section(result),
        *_plot_section(run_dir / "plots"),
        *_example_sections(examples),
        _how_section(run_dir, result, [*transfers, *heads]),
    ]
    path = run_dir / "report.html"
    write_atomic(path, page(title, _lead(result, transfers), sections).encode("utf-8", errors="replace"))
    return path


def read_transfers(run_dir: Path, kind: str = "transfer") -> list[dict[str, Any]]:
    """The newest result of this kind for each task, in the order of the tasks' names.

    Raises:
        ValueError: A result file that is no JSON.
    """
    newest: dict[str, dict[str, Any]] = {}
    for path in sorted((run_dir / "results").glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is damaged ({error}); delete it or run bigbatch transfer again") from None
        if content.get("kind") != kind or content.get("schema_version") != SCHEMA_VERSION:
            continue
        task = content["task"]
        if task not in newest or content["created"] > newest[task]["created"]:
            newest[task] = content
    return [newest[task] for task in sorted(newest)]


def hardware() -> list[tuple[str, str]]:
    """What the page was made on, as (what, value)."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    cards = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return [
        ("processor", f"{cpu}, {os.cpu_count()} cores"),
        *((f"cuda:{index}", name) for index, name in enumerate(cards)),
        ("software", f"Python {platform.python_version()}, torch {torch.__version__}, {platform.system()}"),
    ]


def _lead(result: dict[str, Any], transfers: list[dict[str, Any]]) -> str:
    """The page in a sentence or two, plain text."""
    parts = []
    for transfer in transfers[:1]:
        model = transfer["model"]
        kind = {"mlstm": "multiplicative LSTM", "lstm": "LSTM"}.get(model["config"].get("kind", ""), "model")
        parts.append(
            f"A byte-level {kind} with {transfer['probe']['num_units']:,} units read {model['tokens']:,} characters of "
            "unlabelled text, one byte at a time."
        )
    for transfer in transfers:
        if "accuracy" in transfer["probe"]:
            parts.append(
                f"A linear probe on its state labels {transfer['probe']['accuracy']:.1%} of {transfer['probe']['n']:,} "
                f"held-out texts ({transfer['task']}) correctly; one single unit, {transfer['unit']['accuracy']:.1%}."
                if transfer["unit"]
                else f"A linear probe on its state labels {transfer['probe']['accuracy']:.1%} of "
                f"{transfer['probe']['n']:,} held-out texts ({transfer['task']}) correctly."
            )
    if not transfers and "bpc" in result:
        parts.append(f"Held-out text costs {result['bpc']:.3f} bits per character.")
    return " ".join(parts)


def _accuracy_sections(transfers: list[dict[str, Any]]) -> list[tuple[str, str]]:
    sections = []
    for transfer in transfers:
        probe, unit = transfer["probe"], transfer["unit"]
        if "accuracy" not in probe:
            note = f"<p>{transfer['data']['test']['n']:,} texts without labels; predictions in "
            sections.append(
                (f"Task {transfer['task']}", f"{note}<code>{html.escape(transfer['predictions'])}</code>.</p>")
            )
            continue
        rows = [(f"Probe on {probe['n_nonzero']:,} of {probe['num_units']:,} units", probe, True)]
        if unit:
            rows.append((f"Single unit {unit['index']} (sign {unit['sign']:+d})", unit, True))
        rows.append(("TF-IDF (1-2 words) + logistic regression", transfer["baseline_tfidf"], False))
        rows.append(("Majority class", transfer["baseline_majority"], False))
        gap = transfer["probe_minus_tfidf"]
        verdict = "excludes" if gap["low"] > 0 or gap["high"] < 0 else "includes"
        note = (
            f"<p>Accuracy on {probe['n']:,} test texts with 95 % intervals (Wilson). Everything is fitted on "
            f"{transfer['data']['train']['n']:,} training texts; C and the unit are chosen on "
            f"{transfer['data']['val']['n']:,} validation texts. Probe minus TF-IDF on the same texts: "
            f"<b>{100 * gap['difference']:+.1f} points</b> [{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}], an "
            f"interval that {verdict} zero.</p>"
        )
        sections.append((f"Accuracy: {transfer['task']}", interval_rows(rows) + note))
    return sections


def _head_sections(heads: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Tasks with several labels a text, or a number: the headline scores, each with interval and the baseline's."""
    sections = []
    for head in heads:
        count = f"{head['data']['test']['n']:,}"
        if "scores" not in head:
            note = (
                f"<p>{count} texts without labels; predictions in <code>{html.escape(head['predictions'])}</code>.</p>"
            )
            sections.append((f"Task {head['task']}", note))
            continue
        rows = []
        for key, name in HEADLINES.items():
            if key in head["scores"]:
                row, baseline = head["scores"][key], head["baseline"][key]["value"]
                rows.append(
                    (name, f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}], baseline {baseline:.3f}")
                )
        rows += [(f"F1 {name}", f"{row['f1']:.3f}") for name, row in head["scores"].get("per_label", {}).items()]
        note = f"<p>On {count} test texts, with 95 % intervals. Baseline: {html.escape(head['baseline']['rule'])}.</p>"
        sections.append((f"Scores: {head['task']}", table(rows) + note))
    return sections


def _bpc_section(result: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        (name, result[key], own)
        for name, key, own in (
            ("This model", "bpc", True),
            ("Order-5 byte model (interpolated Witten-Bell)", "bpc_5gram", False),
            ("gzip -9", "bpc_gzip", False),
        )
        if result.get(key) is not None
    ]
    if not rows:
        return []
    size = f" over {result['bpc_bytes']:,} held-out bytes" if "bpc_bytes" in result else " on held-out text"
    note = f"<p>Bits per character (byte){size}, the same for every row; lower is better.</p>"
    return [("Language model", bar_rows(rows) + note)]


def _plot_section(folder: Path) -> list[tuple[str, str]]:
    pictures = []
    for path in folder.glob("*.png"):
        name = path.stem.replace("_", "-")
        rank = next((rank for rank, part in enumerate(CAPTIONS) if part in name), len(CAPTIONS))
        caption = list(CAPTIONS.values())[rank] if rank < len(CAPTIONS) else name.replace("-", " ")
        pictures.append((rank, path, caption))
    pictures = [(path, caption) for _, path, caption in sorted(pictures)]
    return [("Pictures", figures(pictures))] if pictures else []


def _example_sections(examples: Examples | None) -> list[tuple[str, str]]:
    if examples is None:
        return []
    body = (
        f"<p>Each character has the colour of unit {examples.unit} after the model has read it. Nothing else than the "
        f"text to its left can have made the colour.</p>{scale_html(examples.scale)}"
    )
    for heading, traces in (("Read correctly", examples.right), ("Misread, the most confident first", examples.wrong)):
        if traces:
            body += f"<h3>{heading}</h3>" + "".join(text_html(trace, examples.scale) for trace in traces)
    return [(f"Reviews, coloured by the unit ({examples.task})", body)]


def _how_section(run_dir: Path, result: dict[str, Any], transfers: list[dict[str, Any]]) -> tuple[str, str]:
    rows = [*hardware()]
    train = result.get("train") or {}
    if train:
        seconds = f", {train['seconds'] / 60:.1f} minutes" if "seconds" in train else ""
        rows.append(("training", f"{train['samples']:,} samples, {train['tokens']:,} characters{seconds}"))
    for transfer in transfers:
        rows.append((f"transfer {transfer['task']}", f"{transfer['created']}, model {transfer['model']['hash'][:12]}"))
        for name, part in transfer["data"].items():
            files = ", ".join(Path(file).name for file in part["files"])
            rows.append((f"{transfer['task']} {name}", f"{part['n']:,} texts of {files}, sha256 {part['sha256'][:12]}"))
    body = table(rows)
    config = run_dir / "config.yaml"
    if config.is_file():
        body += details("config.yaml", config.read_text(encoding="utf-8"))
    return "How this was made", body
