"""The figures by name: module and what it shows. A new figure is a module with `load` and `draw`, and a line here."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from . import style

FIGURES = {
    "precision-curves": "arXiv 1808.01371 fig. 2: mixed against single precision",
    "epoch-time": "arXiv 1808.01371 fig. 3: hours an epoch and speed-up against GPUs",
    "size-curves": "arXiv 1808.01371 fig. 4: BPC by model size and batch",
    "learning-rates": "arXiv 1808.01371 fig. 5: learning rates, rules, final BPC",
    "sentiment-sizes": "sentiment accuracy by model size",
    "reproduction": "BPC and SST accuracy over updates, against OpenAI's weights",
    "label-savings": "Radford et al.: labels needed to match earlier systems",
    "megatron-scaling": "Megatron-LM weak scaling",
    "megatron-perplexity": "Megatron-LM perplexity and LAMBADA by model size",
    "bert-hours": "BERT-large hours against GPUs",
    "mtnlg-throughput": "MT-NLG 530B iteration time and TFLOP/s at 280, 350, 420 nodes",
    "mtnlg-batch-ramp": "MT-NLG 530B global batch over tokens",
    "mtnlg-blend": "MT-NLG 530B data sets and their weights",
    "fastertransformer": "FasterTransformer latency of BERT-base",
    "scaling-errors": "residuals of the scaling model",
}


def make(name: str, runs: Sequence[Path], out: Path) -> tuple[list[Path], str]:
    """Draws one figure.

    Args:
        name: a key of `FIGURES`.
        runs: run folders whose numbers go beside the published ones.
        out: folder.

    Returns:
        The files that were written (PNG, SVG, CSV, TXT) and the caption.
    """
    module = importlib.import_module(f".{name.replace('-', '_')}", __package__)
    rows = module.load(runs)
    drawn = module.draw(rows)
    return style.save(drawn, rows, out, name), drawn.caption
