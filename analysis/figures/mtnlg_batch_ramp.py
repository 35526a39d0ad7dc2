"""MT-NLG 530B: the ramp of the global batch over the first 12 billion tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..published_tables import read_published
from . import style
from .style import Drawn, Rows


def load(runs: Sequence[Path] = ()) -> Rows:
    """Batch from each threshold on, derived from the published rule (32 to 1,920 in steps of 32 over 12 B tokens)."""
    return style.published(
        [{**row, "name": "global batch"} for row in read_published("mtnlg_batch_ramp_derived")],
        "name",
        billion_tokens="tokens_B_at_start",
        batch="global_batch",
        iterations="iterations_before",
    )


def draw(rows: Rows) -> Drawn:
    figure, axes = style.new(height=4)
    x, batch = [row["billion_tokens"] for row in rows], [row["batch"] for row in rows]
    axes.step([*x, 14], [*batch, batch[-1]], where="post", color=style.BLUE, lw=1.6, label="global batch (left)")
    axes.set_xlim(0, 14)
    style.finish(axes, "billion tokens", "samples of 2,048 tokens", legend=False)
    right = axes.twinx()
    right.plot(
        x, [row["iterations"] for row in rows], color=style.ORANGE, lw=1.4, ls="--", label="iterations so far (right)"
    )
    right.set_ylabel("iterations")
    right.spines["top"].set_visible(False)
    lines = [*axes.get_lines(), *right.get_lines()]
    axes.legend(lines, [str(line.get_label()) for line in lines], frameon=False, fontsize=8, loc="lower right")
    style.only_published(figure, rows)
    caption = (
        "Global batch of MT-NLG 530B: 32 to 1,920 in steps of 32 over the first 12 B tokens (published); "
        "thresholds and iterations are "
        f"derived from that. Source: {style.sources(rows)}."
    )
    return Drawn(figure, caption)
