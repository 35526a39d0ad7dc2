"""Figures of published numbers: what is drawn is what the tables and run folders say, and only that."""

from __future__ import annotations

import csv
import importlib
import json
from pathlib import Path

import pytest
import yaml
from bigbatch.analysis.figures import (
    learning_rates,
    megatron_perplexity,
    mtnlg_blend,
    own_runs,
    registry,
    size_curves,
    style,
)
from bigbatch.analysis.published_tables import read_published
from bigbatch.scripts.figures import main

NEEDED = {"series", "kind", "source"}


def make_run(root: Path, name: str, lr: float = 1e-3, bpc: float | None = 2.0, total: int = 100) -> Path:
    folder = root / name
    (folder / "results").mkdir(parents=True)
    config = {
        "model": {"hidden_size": 128},
        "batch": {"global_batch_size": 256},
        "optim": {"lr": lr},
        "precision": "fp16",
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    rows = [{"samples": n, "total_samples": total, "bpc": 4.0 if n < 100 else bpc} for n in (50, 100)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = {"probe": {"accuracy": 0.71, "n": 1821}, "unit": {"accuracy": 0.64}}
    (folder / "results" / "sst-0123.json").write_text(json.dumps(result))
    (folder / "results" / "unlabelled-0123.json").write_text(json.dumps({"probe": {}, "unit": None}))
    return folder


@pytest.mark.parametrize("name", registry.FIGURES)
def test_every_figure_draws_rows_that_say_whose_they_are(name: str) -> None:
    module = importlib.import_module(f"bigbatch.analysis.figures.{name.replace('-', '_')}")
    rows = module.load()
    drawn = module.draw(rows)
    assert rows and all(row.keys() >= NEEDED and all(row[key] for key in NEEDED) for row in rows)
    assert {row["kind"] for row in rows} <= {"published", "model"}
    assert "ublished" in drawn.caption and len(drawn.caption) > 100
    assert all(axes.lines or axes.patches or axes.images for axes in drawn.figure.axes)


def test_a_figure_is_written_whole_and_the_same_every_time(tmp_path: Path) -> None:
    paths, caption = registry.make("label-savings", [], tmp_path)
    assert [path.name for path in paths] == [f"label-savings.{kind}" for kind in ("png", "svg", "csv", "txt")]
    assert sorted(tmp_path.iterdir()) == sorted(paths)  # nothing half-written is left
    assert paths[0].read_bytes().startswith(b"\x89PNG") and b"<svg" in paths[1].read_bytes()
    rows = list(csv.DictReader(paths[2].read_text().splitlines()))
    assert (rows[0]["series"], rows[0]["labels"]) == ("matches multichannel CNN", "11.0")
    assert paths[3].read_text() == f"{caption}\n"
    again = registry.make("label-savings", [], tmp_path / "again")[0]
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]


def test_published_points_are_the_cells_of_the_table() -> None:
    rows = size_curves.load()
    drawn = {(row["series"], row.get("percent"), row["bpc"]) for row in rows}
    table = read_published("nv1808_size_comparison")
    assert drawn == {
        (
            row["model"],
            float(row["percent_of_one_epoch"]) if row["percent_of_one_epoch"] else None,
            float(row["bpc_approx"]),
        )
        for row in table
    }
    (axes,) = size_curves.draw(rows).figure.axes
    line = next(line for line in axes.get_lines() if line.get_label() == "4096 units @ batch 2048")
    assert list(line.get_ydata()) == [1.212, 1.173, 1.153, 1.138, 1.128]
    assert [line.get_ydata()[0] for line in axes.get_lines() if "SoTA" in str(line.get_label())] == [1.048]


def test_what_was_not_found_stays_empty() -> None:
    blend = mtnlg_blend.load()
    assert {row["series"] for row in blend if row["passes"] is None} == {
        "StackExchange",
        "PubMed Abstracts",
        "ArXiv",
        "GitHub",
    }
    right = mtnlg_blend.draw(blend).figure.axes[1]
    assert len(right.patches) == 11 and [t.get_text() for t in right.texts].count("size not found") == 4
    sizes = megatron_perplexity.load()
    assert [row["lambada"] for row in sizes if "news" in row["series"]] == [None]
    # No cell of figure 5 is published: without runs of ours there is no BPC in it.
    assert not [row for row in learning_rates.load() if row["series"] == "ours, final BPC"]


def test_own_runs_stand_beside_the_published(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, "good"),
        make_run(tmp_path, "bad", 0.04, None),
        make_run(tmp_path, "half", 0.01, 2.5, 200),
    ]
    assert [run.final_bpc for run in own_runs.read_runs(runs)] == [2.0, None, 2.5]
    cells = {row["lr"]: row["result"] for row in learning_rates.load(runs) if row["kind"] == "ours"}
    assert cells == {1e-3: "2.000", 0.04: "Div", 0.01: "2.500 at 50 %"}
    drawn = learning_rates.draw(learning_rates.load(runs))
    assert sorted(text.get_text() for text in drawn.figure.axes[0].texts) == ["2.000", "2.500 at 50 %", "Div"]
    assert "Ours: run folder good, run folder bad, run folder half" in drawn.caption
    curve = [(row["percent"], row["bpc"]) for row in size_curves.load(runs[:1]) if row["kind"] == "ours"]
    assert curve == [(50.0, 4.0), (100.0, 2.0)]
    paths, caption = registry.make("sentiment-sizes", runs[:1], tmp_path / "out")
    ours = [row for row in csv.DictReader(paths[2].read_text().splitlines()) if row["kind"] == "ours"]
    assert [(row["panel"], float(row["accuracy"]), row["n"]) for row in ours] == [
        ("SST", 71.0, "1821"),
        ("SST_1_neuron", 64.0, "1821"),
    ]
    assert "n = 1821" in caption


def test_folders_without_a_run_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing is not a run folder"):
        own_runs.read_runs([tmp_path / "nothing"])
    empty = make_run(tmp_path, "empty")
    (empty / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"empty has no line of metrics yet: let the run go on, or leave it out"):
        own_runs.read_runs([empty])


def test_colours_are_told_apart_in_grey_or_by_marker() -> None:
    assert len(set(style.COLOURS)) == len(style.COLOURS) == len(set(style.MARKERS))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [*registry.FIGURES, "numerics", "lr-batch"]
    assert main(["label-savings", "label-savings", "--out", str(tmp_path)]) == 0
    assert (
        capsys.readouterr().out.count(f"wrote {tmp_path}/label-savings.png") == 1 and len(list(tmp_path.iterdir())) == 4
    )
    with pytest.raises(ValueError, match=r"there is no figure 'nothing': `bigbatch figures --list` prints the names"):
        main(["nothing"])
    with pytest.raises(ValueError, match=r"no figure named: "):
        main([])
