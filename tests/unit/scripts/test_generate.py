"""`bigbatch generate`: prompts, samples, held units and the coloured page, from the command line."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from bigbatch.data.cleaning import clean_review
from bigbatch.inference.decode import decode
from bigbatch.inference.sampling import Sampling
from bigbatch.models.config import MLSTMConfig
from bigbatch.models.mlstm import MLSTM
from bigbatch.scripts.cli import main
from bigbatch.scripts.generate import prompt_bytes
from bigbatch.sentiment.characters import characters_of
from bigbatch.sentiment.heatmap import visible
from bigbatch.sentiment.hold import hold_units
from bigbatch.sentiment.probe import SentimentProbe
from bigbatch.training.checkpoint import Checkpoint, load_model, save_checkpoint

UTF8 = ("--valid-utf8", "--num-bytes", "24")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with a model of eight units and a probe as `bigbatch transfer` leaves it."""
    config = MLSTMConfig(hidden_size=8, embedding_size=4)
    torch.manual_seed(0)
    model = MLSTM(config)
    with torch.no_grad():
        model.output.weight.mul_(10)
    run = tmp_path / "mine"
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    save_checkpoint(run, Checkpoint(state, {"samples": 1, "tokens": 64}), {"model": asdict(config)})
    loaded = load_model(run)
    probe = SentimentProbe()
    generator = torch.Generator().manual_seed(0)
    X = torch.randn((40, 8), generator=generator).numpy()
    probe.fit(X, X[:, 5] > 0, X, X[:, 5] > 0)
    (run / "results").mkdir()
    (run / "results" / "shop-1.json").write_text(json.dumps({"predictions": "results/shop-1.predictions.csv"}))
    rows = "".join(f"{i},{i},{'negative' if i < 20 else 'positive'},x,{i / 10}\n" for i in range(40))
    (run / "results" / "shop-1.predictions.csv").write_text("index,row,label,predicted,unit\n" + rows)
    about = {
        "task": "shop",
        "class_names": ["negative", "positive"],
        "features": {"state": "cell", "transform": "raw", "layer": -1},
        "model_hash": loaded.model_hash,
        "checkpoint": str(loaded.path.relative_to(run)),
        "unit": {"index": 5, "sign": 1, "threshold": 2.0},
        "result": "results/shop-1.json",
    }
    probe.save(run / "probe" / "shop.json", about)
    return run


def call(*argv: str | Path) -> int:
    return main(["generate", *(str(word) for word in argv)])


def output(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> str:
    assert call(*argv) == 0
    return capsys.readouterr().out


def test_writes_what_decode_writes(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = output(
        capsys, "--run-dir", run_dir, "--prompt", " The  lid &amp;\nme", "--temperature", "0.5", "--top-k", "40",
        "--top-p", "0.9", "--seed", "7", *UTF8,
    )  # fmt: skip
    sampling = Sampling(0.5, 40, 0.9, valid_utf8=True)
    (expected,) = decode(load_model(run_dir).model, [b"\n The  lid & me"], 24, sampling, seed=7)
    assert out == f"The  lid & me{expected.decode()}\n"


def test_greedy_twice_is_the_same_and_a_seed_is_a_seed(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ("--run-dir", run_dir, "--prompt", "A", *UTF8)
    assert output(capsys, *base, "--temperature", "0") == output(capsys, *base, "--temperature", "0", "--seed", "9")
    assert output(capsys, *base, "--seed", "1") == output(capsys, *base, "--seed", "1")
    assert output(capsys, *base, "--seed", "1") != output(capsys, *base, "--seed", "2")


def test_samples_do_not_depend_on_one_another(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def samples(*argv: str) -> dict[str, str]:
        out = output(capsys, "--run-dir", run_dir, *argv, *UTF8)
        parts = out.removeprefix("--- prompt ").split("\n--- prompt ")
        return {part.partition("\n")[0]: part.partition("\n")[2].rstrip("\n") for part in parts}

    many = samples("--prompt", "A lamp", "--prompt", "The lid", "--samples", "3")
    assert list(many) == [f"{prompt}, sample {sample}" for prompt in (1, 2) for sample in (1, 2, 3)]
    assert len(set(many.values())) == 6
    few = samples("--prompt", "A lamp", "--samples", "2")
    assert few == {name: many[name] for name in ("1, sample 1", "1, sample 2")}
    alone = samples("--prompt", "The lid", "--samples", "3")
    assert list(alone.values()) == [many[f"2, sample {sample}"] for sample in (1, 2, 3)]


def test_held_units_and_classes(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, prompt = load_model(run_dir).model, b"\n "
    base = ("--run-dir", run_dir, *UTF8)
    free = output(capsys, *base)

    def expected(held: dict[int, float]) -> str:
        sampling = Sampling(valid_utf8=True)
        return decode(model, [prompt], 24, sampling, after_step=hold_units(held, 8))[0].decode() + "\n"

    assert output(capsys, *base, "--unit", "2=3.5", "--unit", "6=-3") == expected({2: 3.5, 6: -3.0}) != free
    # Of 20 texts of the class, 2.0 to 3.9, the two furthest ones; of the other, 0.0 to 1.9, the two lowest.
    assert output(capsys, *base, "--sentiment", "positive") == expected({5: 3.85})
    assert call(*base, "--sentiment", "negative", "--task", "shop") == 0
    captured = capsys.readouterr()
    assert captured.out == expected({5: 0.05})
    assert "unit 5 held at 0.05, the mean of 2 texts of class negative" in captured.err


def test_heatmap_of_what_was_written(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, picture = tmp_path / "made" / "w.html", tmp_path / "made" / "w.png"
    output(capsys, "--run-dir", run_dir, "--samples", "2", "--heatmap", page, *UTF8)
    text = page.read_text(encoding="utf-8")
    written = decode(load_model(run_dir).model, [b"\n "] * 2, 24, Sampling(valid_utf8=True))
    shown = [html.unescape("".join(re.findall(r">([^<]*)</i>", line))) for line in text.split('class="bb-text"')[1:]]
    for line, data in zip(shown, written):
        assert line.startswith("".join(visible(c)[0] for c in characters_of(b"\n " + data)[0]))
    assert text.count('class="bb-text"') == 2 and "read with nothing held" in text and "positive (" in text
    output(capsys, "--run-dir", run_dir, "--unit", "1=2", "--unit", "5=1", "--heatmap", page, *UTF8)
    text = page.read_text(encoding="utf-8")
    assert text.count('class="bb-text"') == 2 and "Unit 1</b>" in text and "Unit 5" in text
    output(capsys, "--run-dir", run_dir, "--heatmap", picture, *UTF8)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("text", "cleaning", "expected"),
    [
        ("", "reviews", b"\n "),
        ("  ", "reviews", b"\n "),
        ("The lid", "reviews", b"\n The lid"),
        ("The lid ", "reviews", b"\n The lid "),
        ("it&#39;s\nfine", "reviews", b"\n it's fine"),
        ("The\nlid", "none", b"The\nlid"),
    ],
)
def test_prompts_begin_as_documents_of_the_training_text(text: str, cleaning: str, expected: bytes) -> None:
    assert prompt_bytes(text, cleaning) == expected
    assert cleaning == "none" or clean_review(text).startswith(expected)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--samples", "0"], "--samples is 0: it must be at least 1"),
        (["--num-bytes", "0"], "num_bytes is 0; it must be at least 1"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--top-p", "0"], "top_p is 0.0"),
        (["--top-k", "-2"], "top_k is -2"),
        (["--seed", "-2"], "the seed is -2"),
        (["--unit", "8=1"], "unit 8 does not exist: the model has units 0 to 7"),
        (["--unit", "8"], "'8' is no unit with its value"),
        (["--sentiment", "fine"], "no class 'fine'; it has negative, positive"),
        (["--sentiment", "positive", "--unit", "5=1"], "unit 5 is held at 1 and at 3.85; choose one value"),
        (["--task", "other"], "no probe for task 'other'"),
        (["--heatmap", "x.pdf"], "--heatmap x.pdf: the name must end in .html or .png"),
    ],
)
def test_errors_are_one_line(argv: list[str], message: str, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--run-dir", run_dir, *argv) == 2
    captured = capsys.readouterr()
    assert message in captured.err and len(captured.err.strip().splitlines()) == 1 + ("held at 3.85," in captured.err)
    assert not captured.out


def test_runs_without_model_or_probe(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--run-dir", tmp_path / "nowhere") == 2
    assert "bigbatch train" in capsys.readouterr().err
    (run_dir / "probe" / "shop.json").unlink()
    assert call("--run-dir", run_dir, "--sentiment", "positive") == 2
    assert "has no probe yet: run `bigbatch transfer" in capsys.readouterr().err
    assert call("--run-dir", run_dir, *UTF8) == 0  # free text needs no probe


def test_text_that_was_not_cleaned_needs_a_prompt(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import replace

    from bigbatch.training import checkpoint

    found = load_model(run_dir)
    raw = replace(found, config={**found.config, "data": {"cleaning": "none"}})
    monkeypatch.setattr(checkpoint, "load_model", lambda *_: raw)
    assert call("--run-dir", run_dir, *UTF8) == 2
    assert "the prompt is empty: this run's text was not cleaned" in capsys.readouterr().err
    assert output(capsys, "--run-dir", run_dir, "--prompt", "  A", *UTF8).startswith("A")


def test_bytes_that_are_no_text_leave_as_they_are(run_dir: Path) -> None:
    command = [sys.executable, "-m", "bigbatch.scripts.cli", "generate", "--run-dir", str(run_dir), "--num-bytes", "60"]
    done = subprocess.run(command, capture_output=True)
    (expected,) = decode(load_model(run_dir).model, [b"\n "], 60)
    assert done.returncode == 0 and done.stdout == expected + b"\n", done.stderr
    with pytest.raises(UnicodeDecodeError):
        expected.decode()
