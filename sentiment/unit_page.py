"""The page of a study of units, and the tables that it shares with the command line.

`unit_study.py` finds what is shown here; style and layout are `page.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from .heatmap import scale_html, text_html, trace_text
from .page import figures, grid, page
from .unit_panels import UnitMeaning, unit_panels

_RANKING_NOTE = (
    "<p>Weight: of the L1 probe, positive for the second class. AUC: the chance that a text of the second class has the larger "
    "value. Bits: mutual information of value and label (nearest neighbours, scikit-learn).</p>"
)
_ABLATION_NOTE = (
    "<p>Accuracy of the same probe, not fitted again. Units by |weight|; the last row takes all that the probe uses. At the mean "
    "over these texts, units that are taken away leave the probe's threshold where it was.</p>"
)
_SPAN_NOTE = (
    "<p>The unit after a word and the white space that follows it, minus the unit before the word; of runs the mean over their "
    "occurrences.</p>"
)


def ranking_rows(summary: dict[str, Any], order: str = "weight") -> tuple[list[str], list[list[str]]]:
    """Heads and cells of a ranking: `weight`, `auc` or `information`."""
    heads = ["unit", "weight", "speaks for", "AUC", "by AUC", "bits", "by bits"]
    names = {-1: summary["classes"][0], 0: "-", 1: summary["classes"][1]}
    rows = [
        [
            str(row["unit"]), f"{row['weight']:+.4f}", names[row["weight_sign"] or row["auc_sign"]], f"{row['auc']:.3f}",
            str(row["rank_by_auc"]), f"{row['information']:.3f}", str(row["rank_by_information"]),
        ]
        for row in summary["ranking"][order]
    ]  # fmt: skip
    return heads, rows


def ablation_rows(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the ablation."""
    columns = ("without_zero", "without_mean", "only_zero", "only_mean")
    heads = ["k best", "without, at 0", "without, at mean", "alone, rest at 0", "alone, rest at mean"]
    return heads, [
        [str(row["k"]), *(f"{row[name]['accuracy']:.4f}" for name in columns)] for row in summary["ablation"]
    ]


def span_rows(summary: dict[str, Any], num_words: int) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of runs of words: those that raise the unit beside those that lower it."""
    found = summary["spans"][str(num_words)]
    sides = [
        [[span["words"], f"{span['mean_change']:+.3f}", f"{span['count']}"] for span in found[side]]
        for side in ("rising", "falling")
    ]
    length = max(map(len, sides))
    rising, falling = (side + [[""] * 3] * (length - len(side)) for side in sides)
    rows = [left + right for left, right in zip(rising, falling)]
    return ["raise the unit", "mean", "n", "lower it", "mean", "n"], rows


def units_page(
    summary: dict[str, Any], model: nn.Module, about: dict[str, Any], pictures: Sequence[tuple[Path, str]]
) -> str:
    """The page: tables, pictures with their captions, and the coloured texts of both ends."""
    unit, features = summary["unit"]["unit"], summary["features"]
    sections = [
        ("Units by the probe's weight", grid(*ranking_rows(summary), text_columns=(0, 2)) + _RANKING_NOTE),
        ("Units by AUC", grid(*ranking_rows(summary, "auc"), text_columns=(0, 2))),
        ("Units by mutual information", grid(*ranking_rows(summary, "information"), text_columns=(0, 2))),
        (
            "Without the best units, and with them alone",
            grid(*ablation_rows(summary), text_columns=()) + _ABLATION_NOTE,
        ),
    ]
    sections.append(("Pictures", figures(pictures)))
    words = ""
    for num_words, heading in ((1, "Words"), (2, "Two words"), (3, "Three words")):
        heads, rows = span_rows(summary, num_words)
        words += f"<h3>{heading}</h3>{grid(heads, rows, text_columns=(0, 3))}" if rows else ""
    for side, heading in (("rising", "Largest rises over one word"), ("falling", "Largest falls over one word")):
        rows = [[row["context"], f"{row['change']:+.3f}"] for row in summary["occurrences"][side]]
        words += f"<h3>{heading}</h3>{grid(['where', 'change'], rows)}" if rows else ""
    sections.append((f"Words that move unit {unit}", words + _SPAN_NOTE))
    chosen = [(row, end) for end in ("highest", "lowest") for row in summary["texts"][end]]
    traces = [
        trace_text(
            model, row["text"], unit, state=features["state"], transform=features["transform"],
            caption=f"{end}: {row['value']:.3f}, labelled {row['label']}",
        )
        for row, end in chosen
    ]  # fmt: skip
    (panel,) = unit_panels([unit], [[trace] for trace in traces], UnitMeaning.of_probe(about))
    coloured = "".join(text_html(trace, panel.scale) for trace in panel.traces)
    sections.append((f"Texts after which unit {unit} is highest and lowest", scale_html(panel.scale) + coloured))
    lead = f"{summary['data']['n']:,} labelled texts, {summary['features']['state']} state of the last layer."
    return page(f"Units of the probe {summary['task']}", lead, sections)
