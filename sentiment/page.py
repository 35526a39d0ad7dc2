"""The look of report.html: page frame, style, and the few building blocks that `report.py` fills.

Plain HTML and CSS in one file: system fonts, pictures inlined as base64, no script, nothing loaded from anywhere.
Everything that is not markup of ours is escaped here.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .heatmap import CSS as HEATMAP_CSS

_CSS = """\
:root{--ink:#1c2330;--soft:#5b6475;--line:#e3e6ec;--own:#2b7bba;--other:#9aa3b2;--paper:#fff;--wash:#f6f7f9}
*{box-sizing:border-box}
body{margin:0;background:var(--wash);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif}
main{max-width:58rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}
header h1{font-size:1.9rem;line-height:1.2;margin:0 0 .6rem;letter-spacing:-.01em}
header p{font-size:1.1rem;color:var(--soft);margin:0 0 2rem;max-width:46rem}
section{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:1.25rem 1.5rem 1rem;margin:0 0 1.25rem}
h2{font-size:1.15rem;margin:0 0 .9rem}
h3{font-size:1rem;margin:1.4rem 0 .5rem}
section>p{color:var(--soft);font-size:.92rem;margin:.9rem 0 .3rem}
table{border-collapse:collapse;width:100%;font-size:.95rem}
th{font-weight:500;font-size:.82rem;color:var(--soft);text-align:left;padding:0 .8rem .35rem 0;
border-bottom:1px solid var(--line)}
td{padding:.45rem .8rem .45rem 0;border-bottom:1px solid var(--line);vertical-align:middle}
tr:last-child td{border-bottom:0}
td.num,th.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
tr.own td{font-weight:600}
td.chart{width:34%;min-width:9rem}
svg{display:block;width:100%;height:1.4rem}
figure{margin:0}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(22rem,1fr));gap:1.25rem}
figure img{width:100%;height:auto;display:block}
figcaption{font-size:.88rem;color:var(--soft);margin-top:.35rem}
table.facts td:first-child{color:var(--soft);width:11rem;white-space:nowrap}
table.facts td{overflow-wrap:anywhere;padding:.3rem .8rem .3rem 0}
details{margin:.9rem 0 .4rem}
summary{cursor:pointer;color:var(--own)}
pre{background:var(--wash);border-radius:6px;padding:.8rem 1rem;overflow:auto;font-size:.82rem;line-height:1.45}
@media(max-width:34rem){.figures{grid-template-columns:1fr}td.chart,th.chart{display:none}section{padding:1rem}}
@media print{body{background:#fff}section{break-inside:avoid;border:0;padding:0}}
"""


def page(title: str, lead: str, sections: Sequence[tuple[str, str]]) -> str:
    """The whole page. `title` and `lead` are plain text, sections are (plain heading, HTML)."""
    body = "".join(
        f"<section>\n<h2>{html.escape(heading)}</h2>\n{content}\n</section>\n" for heading, content in sections
    )
    intro = f"<p>{html.escape(lead)}</p>" if lead else ""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">\n<style>\n{_CSS}{HEATMAP_CSS}</style>\n'
        f"</head>\n<body>\n<main>\n<header><h1>{html.escape(title)}</h1>{intro}</header>\n{body}</main>\n</body>\n</html>\n"
    )


def interval_rows(rows: Sequence[tuple[str, dict[str, Any], bool]]) -> str:
    """A table of accuracies: (name, dictionary with accuracy, n, low, high; ours or not), each with its interval drawn."""
    # The axis starts at a round number below everything, so that intervals are wide enough to be seen.
    start = max(0.0, min(row["low"] for _, row, _ in rows) // 0.1 * 0.1)
    lines = []
    for name, row, own in rows:
        low, mid, high = (100 * (row[key] - start) / (1 - start) for key in ("low", "accuracy", "high"))
        color = "var(--own)" if own else "var(--other)"
        drawn = (
            '<svg viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true">'
            '<line x1="0" x2="100" y1="6" y2="6" stroke="#e3e6ec" vector-effect="non-scaling-stroke"/>'
            f'<line x1="{low:.2f}" x2="{high:.2f}" y1="6" y2="6" stroke="{color}" stroke-width="7" opacity=".35" '
            'vector-effect="non-scaling-stroke"/>'
            f'<line x1="{mid:.2f}" x2="{mid:.2f}" y1="1.5" y2="10.5" stroke="{color}" stroke-width="3" '
            'vector-effect="non-scaling-stroke"/></svg>'
        )
        lines.append(
            f'<tr{" class=own" if own else ""}><td>{html.escape(name)}</td><td class="num">{row["accuracy"]:.1%}</td>'
            f'<td class="num">{100 * row["low"]:.1f} – {100 * row["high"]:.1f}</td><td class="num">{row["n"]:,}</td>'
            f'<td class="chart">{drawn}</td></tr>'
        )
    return (
        '<table><tr><th></th><th class="num">accuracy</th><th class="num">95 % interval</th><th class="num">n</th>'
        f'<th class="chart">{start:.0%} to 100 %</th></tr>{"".join(lines)}</table>'
    )


def bar_rows(rows: Sequence[tuple[str, float, bool]]) -> str:
    """A table of bits per character: (name, value, ours or not), each with a bar from zero."""
    top = max(value for _, value, _ in rows)
    lines = []
    for name, value, own in rows:
        color = "var(--own)" if own else "var(--other)"
        drawn = (
            '<svg viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect x="0" y="3" width="{100 * value / top:.2f}" height="6" rx="1" fill="{color}"/></svg>'
        )
        lines.append(
            f'<tr{" class=own" if own else ""}><td>{html.escape(name)}</td><td class="num">{value:.3f}</td>'
            f'<td class="chart">{drawn}</td></tr>'
        )
    return f'<table><tr><th></th><th class="num">bits per character</th><th class="chart"></th></tr>{"".join(lines)}</table>'


def figures(pictures: Sequence[tuple[Path, str]]) -> str:
    """PNG files inlined side by side with their captions."""
    blocks = []
    for path, caption in pictures:
        data = base64.b64encode(path.read_bytes()).decode()
        text = html.escape(caption)
        blocks.append(
            f'<figure><img src="data:image/png;base64,{data}" alt="{html.escape(path.stem)}: {text}">'
            f"<figcaption>{text}</figcaption></figure>"
        )
    return f'<div class="figures">{"".join(blocks)}</div>'


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Two columns of plain facts."""
    lines = (f"<tr><td>{html.escape(what)}</td><td>{html.escape(value)}</td></tr>" for what, value in rows)
    return f'<table class="facts">{"".join(lines)}</table>'


def details(summary: str, text: str) -> str:
    """A block of preformatted text that opens on a click."""
    return f"<details><summary>{html.escape(summary)}</summary><pre>{html.escape(text)}</pre></details>"


def grid(heads: Sequence[str], rows: Sequence[Sequence[str]], text_columns: Sequence[int] = (0,)) -> str:
    """A table of plain cells; columns that are no text are numbers and stand to the right."""

    def line(tag: str, cells: Sequence[str]) -> str:
        kinds = ("" if column in text_columns else ' class="num"' for column in range(len(cells)))
        return "<tr>" + "".join(f"<{tag}{k}>{html.escape(c)}</{tag}>" for k, c in zip(kinds, cells)) + "</tr>"

    return f"<table>{line('th', heads)}{''.join(line('td', row) for row in rows)}</table>"
