"""Coloured texts of several units put together: what each unit's scale means, and the file they are written to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .heatmap import Panel, Trace, fit_scale, heatmap_page
from .probe import write_atomic


@dataclass(frozen=True)
class UnitMeaning:
    """What a transfer found about its best single unit.

    Attributes:
        unit: The unit.
        threshold: Where its colour is grey.
        sign: +1 if larger values mean the second class.
        negative: Name of the first class.
        positive: Name of the second one.
    """

    unit: int
    threshold: float
    sign: int
    negative: str
    positive: str

    @classmethod
    def of_probe(cls, about: dict[str, Any]) -> UnitMeaning | None:
        """From what `transfer.py` recorded beside a probe; None with more than two classes, which have no best unit."""
        best = about["unit"]
        if best is None:
            return None
        negative, positive = about["class_names"]
        return cls(best["index"], best["threshold"], best["sign"], negative, positive)


def unit_panels(units: Sequence[int], traces: Sequence[Sequence[Trace]], meaning: UnitMeaning | None) -> list[Panel]:
    """A panel for each unit.

    Args:
        units: The units.
        traces: For each text the traces of these units.
        meaning: Of the best single unit, if there is one; of other units nothing is known, so their scale is centred on
            zero and its ends are called low and high.
    """
    panels = []
    for column, unit in enumerate(units):
        of_unit = [row[column] for row in traces]
        if meaning is not None and unit == meaning.unit:
            names = {"negative": meaning.negative, "positive": meaning.positive}
            scale = fit_scale(of_unit, meaning.threshold, meaning.sign, **names)
            panels.append(Panel(f"Unit {unit} (best single unit)", scale, of_unit))
        else:
            panels.append(Panel(f"Unit {unit}", fit_scale(of_unit, negative="low", positive="high"), of_unit))
    return panels


def write_panels(panels: Sequence[Panel], path: Path, title: str) -> None:
    """Writes a page, or a picture where the name ends in `.png`, making its folder.

    Raises:
        ValueError: More text than fits a picture.
    """
    if path.suffix == ".png":
        from .text_picture import heatmap_png  # matplotlib takes a while to load, and a page needs none

        heatmap_png(panels, path, title)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, heatmap_page(panels, title).encode())
