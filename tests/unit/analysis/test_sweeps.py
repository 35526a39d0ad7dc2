"""Sweep files: cells, names, stores, and every mistake in one line before anything starts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from bigbatch.analysis.sweep_folder import claim_folder
from bigbatch.analysis.sweep_runner import check_cells
from bigbatch.analysis.sweeps import load_sweep
from bigbatch.scripts import sweep as command


def test_a_grid_is_the_product_of_its_axes(sweep_of: Callable, tmp_path: Path) -> None:
    grid = {"batch.global_batch_size": [8, 16], "optim.lr": ["1e-3", 0.5], "schedule.decay": ["cosine", "wsd"]}
    sweep = sweep_of(grid=grid, seeds=[1, 2])
    expected = list(itertools.product([8, 16], [0.001, 0.5], ["cosine", "wsd"], [1, 2]))
    found = [
        (c.config.batch.global_batch_size, c.config.optim.lr, c.config.schedule.decay, c.config.seed)
        for c in sweep.cells
    ]
    assert found == expected
    assert sweep.cells[0].name == "batch=8,lr=0.001,decay=cosine,seed=1"
    assert sweep.cells[0].run_dir == tmp_path / "out" / sweep.cells[0].name
    assert sweep.factors == ["batch.global_batch_size", "optim.lr", "schedule.decay"]
    assert len({cell.name for cell in sweep.cells}) == 16


def test_keys_that_move_together_recipes_and_equal_last_words(sweep_of: Callable) -> None:
    sweep = sweep_of(grid={"batch.global_batch_size, batch.micro_batch_size": [[8, 4], [16, 8]]})
    assert [(c.name, c.config.batch.micro_batch_size) for c in sweep.cells] == [("batch=8", 4), ("batch=16", 8)]
    recipes = [
        {"name": "short", "schedule.samples": 80, "optim.lr": 0.1},
        {"schedule": {"samples": 160}, "name": "long"},
    ]
    sweep = sweep_of(list=recipes, grid={"optim.kind": ["adamw", "lamb"]})
    assert [c.name for c in sweep.cells] == ["short,kind=adamw", "short,kind=lamb", "long,kind=adamw", "long,kind=lamb"]
    assert sweep.cells[2].config.schedule.samples == 160
    sweep = sweep_of(grid={"model.kind": ["mlstm", "lstm"], "optim.kind": ["adamw"]})
    assert [c.name for c in sweep.cells] == ["model.kind=mlstm,optim.kind=adamw", "model.kind=lstm,optim.kind=adamw"]


def test_one_store_for_all_cells_and_one_for_each_text(
    sweep_of: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = sweep_of(grid={"optim.lr": [0.1, 0.2]})
    assert len(sweep.sources) == 1 and all(c.config.data.paths == [] for c in sweep.cells)
    assert {str(c.config.data.store) for c in sweep.cells} == set(sweep.sources)
    assert len(sweep_of(grid={"data.cleaning": ["reviews", "none"]}).sources) == 2
    assert len(sweep_of(grid={"data.reset": ["shard", "never"]}).sources) == 1
    monkeypatch.setenv("MY_TEXT", str(tmp_path))
    sweep = sweep_of(grid={"data.paths": [["$MY_TEXT/a.csv"]]})
    assert next(iter(sweep.sources.values())).paths == [str(tmp_path / "a.csv")]
    sweep = sweep_of(grid={"optim.lr": [0.1]}, train={"data": {"store": str(tmp_path / "store")}})
    assert list(sweep.sources) == [str(tmp_path / "store")] and next(iter(sweep.sources.values())).paths == []


def test_a_base_is_read_beside_the_file_and_overridden(sweep_of: Callable, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("model: {hidden_size: 24}\noptim: {lr: 0.7}\nrun_dir: runs/elsewhere\n")
    sweep = sweep_of(base="base.yaml", train={"optim": {"beta1": 0.5}}, grid={"seed": [1]})
    config = sweep.cells[0].config
    assert (config.model.hidden_size, config.optim.lr, config.optim.beta1) == (24, 0.7, 0.5)
    with pytest.raises(FileNotFoundError, match=r"base .*none.yaml does not exist: name a training YAML"):
        sweep_of(base="none.yaml", grid={"seed": [1]})


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"gird": {"seed": [1]}}, r"there is no section 'gird': did you mean grid\?"),
        ({"grid": {"optim.lrr": [1.0]}}, r"there is no key 'optim.lrr': did you mean .*optim.lr"),
        ({"grid": {"learning_rate": [1.0]}}, r"there is no key 'learning_rate'"),
        ({"grid": {"warmup_samples": [1]}}, r"no key 'warmup_samples': did you mean schedule.warmup_samples"),
        ({"grid": {}}, r"varies nothing: give grid, list or ablate"),
        ({}, r"varies nothing"),
        ({"grid": {"seed": []}}, r"seed has no values: give a list, such as \[1, 2\]"),
        ({"grid": {"seed": 3}}, r"seed has no values"),
        ({"grid": {"optim.lr": [0.1]}, "seeds": []}, r"seeds has no values"),
        ({"grid": {"optim.lr": [0.1, 0.1]}}, r"two cells have the name lr=0.1: a value stands there twice"),
        ({"grid": {"seed": [1]}, "seeds": [2]}, r"seed is varied in two places"),
        ({"grid": {"optim.lr": [-1.0]}}, r"optim.lr -1.0: --optim.lr is -1.0: it must be above 0"),
        ({"grid": {"optim.lr": ["fast"]}}, r"optim.lr fast: .*Expected a <class 'float'>. Got value: fast"),
        ({"grid": {"model.kind": ["gru"]}}, r"--model.kind is 'gru': choose one of mlstm, lstm"),
        ({"grid": {"run_dir": ["a"]}}, r"run_dir is not varied or set here"),
        ({"grid": {"optim": [3]}}, r"optim is 3, not a mapping"),
        ({"grid": {"a, b": [[1]]}}, r"a, b are 2 keys that move together: \[1\] is no list of so many values"),
        ({"grid": [1]}, r"grid is \[1\], not a mapping"),
        ({"list": [3]}, r"3 in list is no mapping"),
        ({"grid": {"data.paths": [["$NOT_SET_HERE/a"]]}}, r"names \$NOT_SET_HERE, which is not set: export"),
        ({"grid": {"seed": [1]}, "diverge_samples": -1}, r"diverge_samples is -1: give a number of samples"),
        ({"grid": {"seed": [1]}, "marks": {"lr": 1}}, r"marks is .*: give batch and lr"),
        ({"ablate": {}}, r"ablate has no factors"),
        ({"ablate": {"optim.lr": [1]}, "grid": {"seed": [1]}}, r"ablate varies one factor at a time"),
        ({"ablate": {"schedule.decay": ["linear"]}, "seeds": [1]}, r"decay=linear is what the base has"),
        ({"ablate": {"optim.lr": [1, 1]}}, r"two cells have the name lr=1"),
        ({"list": [{"init_from": "a" * 250}]}, r"of a cell has 260 characters"),
    ],
)  # fmt: skip
def test_mistakes_in_one_line(sweep_of: Callable, sections: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        sweep_of(**sections)
    assert "mine.yaml" in str(error.value) and "\n" not in str(error.value)


def test_files_that_are_no_sweeps(tmp_path: Path, validate: Callable) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no such sweep file; ready ones are in configs/sweeps/"):
        load_sweep(tmp_path / "none.yaml", validate)
    (tmp_path / "a.yaml").write_text("grid: [")
    with pytest.raises(ValueError, match=r"a.yaml is not valid YAML"):
        load_sweep(tmp_path / "a.yaml", validate)
    (tmp_path / "a.yaml").write_text("- 1")
    with pytest.raises(ValueError, match=r"a.yaml is not a sweep: a mapping of base, train, grid"):
        load_sweep(tmp_path / "a.yaml", validate)


def test_what_fails_later_is_refused_for_all_cells_before_anything_is_written(
    sweep_of: Callable, tmp_path: Path
) -> None:
    sweep = sweep_of(grid={"batch.micro_batch_size": [4, 3]})
    with pytest.raises(ValueError, match=r"cell micro_batch_size=3: --batch.global_batch_size 8 does not divide"):
        check_cells(sweep)
    assert not (tmp_path / "out").exists()


def test_the_folder_belongs_to_its_sweep_which_may_grow(
    sweep_of: Callable, tmp_path: Path, train_options: dict
) -> None:
    claim_folder(sweep_of(grid={"optim.lr": [0.1, 0.2]}))
    claim_folder(sweep_of(grid={"optim.lr": [0.2, 0.3]}))
    stored = tmp_path / "out" / "sweep.json"
    assert list(json.loads(stored.read_text())["cells"]) == ["lr=0.1", "lr=0.2", "lr=0.3"]
    with pytest.raises(ValueError, match=r"is the folder of another sweep \(mine.yaml, with cells such as lr=0.1\)"):
        claim_folder(sweep_of(grid={"seed": [1]}))
    other = {**train_options, "model": {"hidden_size": 99, "embedding_size": 4}}
    with pytest.raises(
        ValueError, match=r"another sweep: lr=0.2 has another configuration there \(model.hidden_size: 8 -> 99"
    ):
        claim_folder(sweep_of(grid={"optim.lr": [0.2]}, train=other))
    content = json.loads(stored.read_text())
    content["cells"]["lr=0.2"]["optim"]["speed"] = 3
    stored.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"lr=0.2: the stored configuration is of another version of bigbatch"):
        claim_folder(sweep_of(grid={"optim.lr": [0.2]}))
    stored.write_text('{"format": 99}')
    with pytest.raises(ValueError, match=r"sweep.json is of another version of bigbatch: choose another --out"):
        claim_folder(sweep_of(grid={"optim.lr": [0.2]}))
    stored.write_text("{")
    with pytest.raises(ValueError, match=r"sweep.json is damaged"):
        claim_folder(sweep_of(grid={"optim.lr": [0.2]}))
    stored.unlink()
    (tmp_path / "out" / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"is not empty and holds no sweep \(no sweep.json\): choose another --out"):
        claim_folder(sweep_of(grid={"optim.lr": [0.2]}))


def test_ready_sweeps_are_valid(
    repo: Path, tmp_path: Path, validate: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIGBATCH_CORPORA", str(tmp_path))
    sizes = {}
    for file in sorted((repo / "configs" / "sweeps").glob("*.yaml")):
        sweep = load_sweep(file, validate, tmp_path / file.stem)
        check_cells(sweep)
        sizes[file.stem] = len(sweep.cells)
    assert sizes == {"ablate_schedule": 13 * 3, "lr_batch": 4 * 7 * 2, "tiny": 6}


def test_the_rules_of_the_replica_fall_on_its_grid(repo: Path) -> None:
    content = yaml.safe_load((repo / "configs" / "sweeps" / "lr_batch.yaml").read_text())
    rates, (batch, lr) = content["grid"]["optim.lr"], content["marks"].values()
    batches = [pair[0] for pair in next(iter(content["grid"].values()))]
    assert batches == [32, 128, 512, 2048] and len(rates) == 7 and len(content["seeds"]) == 2
    for power, size in itertools.product((0.5, 1.0), batches):
        rate = lr * (size / batch) ** power
        assert min(abs(r / rate - 1) for r in rates) < 1e-9


def test_the_command_refuses(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--jobs is 0: it must be at least 1"):
        command.main([str(tmp_path / "a.yaml"), "--jobs", "0"])
    with pytest.raises(ValueError, match=r"--interval is 0.0: it must be above 0 seconds"):
        command.main([str(tmp_path / "a.yaml"), "--interval", "0"])
