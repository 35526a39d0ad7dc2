"""Fine-tuning through the one loop: losses against PyTorch's own, the order of texts, resume, early stop, bad input."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics
import torch
from bigbatch.data.cleaning import clean_review
from bigbatch.models.config import ClassifierConfig, HeadConfig, MLSTMConfig
from bigbatch.models.mlstm import MLSTM
from bigbatch.training.checkpoint import newest_checkpoint, save_weights
from bigbatch.training.config import BatchConfig, LogConfig, OptimConfig, ParallelConfig, ScheduleConfig
from bigbatch.training.distributed import Ranks
from bigbatch.training.engine import Engine
from bigbatch.training.finetune import build_task, load_parts, split_by_class
from bigbatch.training.finetune_config import FinetuneConfig, TaskConfig, finetune_from_dict
from bigbatch.training.metrics import read_metrics, read_result
from bigbatch.training.run import train
from bigbatch.training.tasks.classify import ClassifyTask, TextSet, class_weights, classification_loss, pad
from torch.nn import functional as F

ENCODER = MLSTMConfig(embedding_size=8, hidden_size=16)
WORDS = {"bad": ("dull", "awful"), "good": ("superb", "lovely"), "odd": ("weird", "queer")}


def write_rows(path: Path, n: int, classes: tuple[str, ...] = ("bad", "good"), seed: int = 0) -> str:
    generator = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "sentence", *classes])
        for row in range(n):
            name = classes[row % len(classes)]
            flags = [int(name == other or row % 5 == 0) for other in classes]
            text = f"the {'big ' * int(generator.integers(4))}film {row} is {WORDS[name][generator.integers(2)]}"
            writer.writerow([name, text, *flags])
    return str(path)


@pytest.fixture
def encoder(tmp_path: Path) -> str:
    torch.manual_seed(0)
    config = {"model": asdict(ENCODER)}
    save_weights(tmp_path / "encoder", MLSTM(ENCODER).state_dict(), config, {"samples": 0, "tokens": 0})
    return str(tmp_path / "encoder")


@pytest.fixture
def config(tmp_path: Path, encoder: str) -> FinetuneConfig:
    """24 steps of 8 texts: two epochs and a half of 75, with a validation file of 40."""
    return FinetuneConfig(
        encoder=encoder,
        task=TaskConfig(
            train=[write_rows(tmp_path / "train.csv", 75)], val=[write_rows(tmp_path / "val.csv", 40, seed=1)]
        ),
        head=HeadConfig(hidden_sizes=[6]),
        batch=BatchConfig(global_batch_size=8),
        optim=OptimConfig(lr=2e-2),
        schedule=ScheduleConfig(samples=192, decay="constant"),
        log=LogConfig(interval_samples=32, eval_interval_samples=64, checkpoint_interval_samples=64, progress=False),
        run_dir=str(tmp_path / "run"),
        precision="fp32",
        device="cpu",
    )


def engine_of(config: FinetuneConfig) -> Engine:
    Path(config.run_dir).mkdir(parents=True, exist_ok=True)
    return Engine(config, Ranks(), *build_task(config, Ranks()))


def task_of(config: FinetuneConfig, texts: TextSet, classes: list[str], multi_label: bool = False) -> ClassifyTask:
    task = ClassifyTask(config, ClassifierConfig(ENCODER, config.head, classes, multi_label), Ranks(), texts, texts)
    from bigbatch.training.batch_size import batch_layout

    task.begin(batch_layout(config.batch, 1), None, None)
    return task


# ---- the loss ---------------------------------------------------------------------------------------------------------


def test_cross_entropy_is_the_mean_over_heads() -> None:
    scores, labels = torch.randn(4, 3, 5), torch.tensor([0, 4, 2, 2])
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    expected = torch.stack(
        [F.cross_entropy(scores[:, h], labels, weight=weights, reduction="none") for h in range(3)]
    ).mean(0)
    torch.testing.assert_close(classification_loss(scores, labels, weights), expected)


def test_binary_cross_entropy_is_the_mean_over_heads_and_labels() -> None:
    scores, labels, odds = torch.randn(4, 2, 3), torch.randint(0, 2, (4, 3)), torch.tensor([1.0, 2.0, 0.5])
    probability = torch.sigmoid(scores.double())
    each = -(odds * labels[:, None] * probability.log() + (1 - labels[:, None]) * (1 - probability).log())
    torch.testing.assert_close(
        classification_loss(scores, labels, odds).double(), each.mean(dim=(1, 2)), rtol=1e-5, atol=1e-6
    )


def test_balanced_weights_make_classes_count_alike() -> None:
    labels = np.array([0, 0, 0, 1, 2, 2])
    weights = class_weights(labels, 3, "balanced")
    assert weights is not None
    shares = [weights[labels[labels == k]].sum() for k in range(3)]
    assert shares == pytest.approx([2.0, 2.0, 2.0]) and weights[labels].mean() == pytest.approx(1)
    odds = class_weights(np.array([[1, 0], [0, 0], [1, 1], [0, 0]]), 2, "balanced")
    assert odds is not None and odds.tolist() == [1.0, 3.0]
    assert class_weights(labels, 3, "none") is None


def test_one_step_loss_is_classifier_language_model_and_heads_together(config: FinetuneConfig) -> None:
    head = HeadConfig(num_heads=2)
    task_config = replace(config.task, class_weights="balanced", lm_weight=0.3, head_similarity_weight=0.7)
    labels = np.array([0, 0, 1, 0, 0, 1, 0, 0])
    texts = TextSet([clean_review("word " * (1 + k % 3)) for k in range(8)], labels)
    task = task_of(replace(config, head=head, task=task_config), texts, ["bad", "good"])
    torch.manual_seed(1)
    model = task.build_model()
    output = task.loss(model, 0)
    weights = np.array([8 / (2 * 6), 8 / (2 * 2)])[labels]
    assert task.num_targets() == pytest.approx(weights.sum()) == pytest.approx(output.num_targets)
    assert task.num_tokens() == sum(map(len, texts.texts))
    expected, nats, count = 0.0, 0.0, 0
    for row, text in enumerate(texts.texts):
        scores, logits = model(*pad([text], torch.device("cpu")), None, True)
        loss = [F.cross_entropy(scores[0, h], torch.tensor(labels[row])).detach() for h in range(2)]
        expected += weights[row] * float(torch.stack(loss).sum()) / 2
        nats += float(F.cross_entropy(logits[0, :-1].detach(), torch.tensor(list(text[1:])), reduction="sum"))
        count += len(text) - 1
    expected += weights.sum() * (0.3 * nats / count + 0.7 * float(model.head_similarity().detach()))
    assert float(output.loss_sum.detach()) == pytest.approx(expected, rel=1e-5)


def test_what_no_loss_reaches_is_not_trained(config: FinetuneConfig) -> None:
    texts = TextSet([b"\n a ", b"\n b "] * 4, np.array([0, 1] * 4))
    for weight, trained in ((0.0, False), (0.1, True)):
        task = task_of(replace(config, task=replace(config.task, lm_weight=weight)), texts, ["x", "y"])
        model = task.build_model()
        task.settling_loss(model).backward()
        without = {name for name, p in model.named_parameters() if p.requires_grad and p.grad is None}
        assert not without and model.encoder.output.weight.requires_grad is trained  # pyright: ignore


# ---- the order of texts -----------------------------------------------------------------------------------------------


def test_every_epoch_reads_every_text_once_in_an_order_of_its_own(config: FinetuneConfig) -> None:
    texts = TextSet([b"\n %d " % k for k in range(20)], np.array([0, 1] * 10))
    task = task_of(config, texts, ["x", "y"])
    read: list[int] = []
    while len(read) < 60:
        read += task._rows(range(8)).tolist()
        task.advance()
    epochs = [read[start : start + 20] for start in (0, 20, 40)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    again = task_of(config, texts, ["x", "y"])
    again.begin(again.layout, {"samples": 16}, None)
    assert again._rows(range(8)).tolist() == read[16:24]


def test_only_the_end_of_a_long_text_is_trained_on(config: FinetuneConfig) -> None:
    texts = TextSet([b"\n 0123456789 "] * 8, np.array([0, 1] * 4))
    task = task_of(replace(config, task=replace(config.task, max_bytes=4)), texts, ["x", "y"])
    assert task._text(0) == b"789 " and task.num_tokens() == 32


# ---- validation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("multi_label", [False, True])
def test_validation_is_scikit_learns(config: FinetuneConfig, multi_label: bool) -> None:
    generator = np.random.default_rng(0)
    n, classes = 70, ["a", "b", "c"]
    labels = generator.integers(0, 2, (n, 3)) if multi_label else generator.integers(0, 3, n)
    texts = TextSet([clean_review("x" * int(k)) for k in generator.integers(1, 40, n)], labels)
    task = task_of(config, texts, classes, multi_label)
    torch.manual_seed(0)
    model = task.build_model()
    val = task.validate(model, 0, lambda: False)
    assert val is not None and val.num_targets == n
    with torch.no_grad():
        scores = torch.cat([model(*pad([text], torch.device("cpu")))[0].mean(1) for text in texts.texts])
    predicted = (scores > 0).long().numpy() if multi_label else scores.argmax(1).numpy()
    loss = classification_loss(scores[:, None], torch.from_numpy(labels), None).mean()
    assert val.loss == pytest.approx(float(loss), rel=1e-5)
    accuracy = (predicted == labels).mean()  # of labels, where there are several
    f1 = sklearn.metrics.f1_score(labels, predicted, average="macro", zero_division=0)
    assert val.accuracy == pytest.approx(accuracy) and val.f1 == pytest.approx(f1)
    assert task.validate(model, 0, lambda: True) is None


# ---- the loop ---------------------------------------------------------------------------------------------------------


def losses(run_dir: str) -> list[float]:
    return [row["loss"] for row in read_metrics(run_dir)]


def test_it_learns_and_a_stopped_run_ends_as_the_uninterrupted_one(config: FinetuneConfig, tmp_path: Path) -> None:
    config = replace(config, head=replace(config.head, dropout=0.2))
    result = engine_of(config).run()
    assert result.status == "finished" and result.best is not None and result.best >= 0.9  # chance is 0.5
    stopped = replace(config, run_dir=str(tmp_path / "stopped"))
    for steps in (5, 9):
        engine = engine_of(stopped)
        advance, calls = engine.task.advance, []

        def counting(
            engine: Engine = engine, advance: Callable = advance, calls: list = calls, steps: int = steps
        ) -> None:
            calls.append(None)
            if len(calls) == steps:
                engine.request_stop()
            advance()

        engine.task.advance = counting
        assert engine.run().status == "stopped"
    assert engine_of(stopped).run().status == "finished"
    assert losses(config.run_dir) == losses(stopped.run_dir)
    ends = [newest_checkpoint(Path(c.run_dir)) for c in (config, stopped)]
    assert ends[0] is not None and ends[1] is not None
    assert all(torch.equal(ends[0][0].model[name], ends[1][0].model[name]) for name in ends[0][0].model)


def test_accumulation_changes_nothing(config: FinetuneConfig, tmp_path: Path) -> None:
    task = replace(config.task, class_weights="balanced", lm_weight=0.1)
    whole = replace(config, task=task, schedule=replace(config.schedule, samples=64))
    parts = replace(whole, batch=BatchConfig(8, 2), run_dir=str(tmp_path / "parts"))
    for run in (whole, parts):
        engine_of(run).run()
    # The language model's loss is a mean over each micro-batch's bytes, so that part is equal only about.
    assert losses(parts.run_dir) == pytest.approx(losses(whole.run_dir), rel=2e-2)
    without = replace(task, lm_weight=0.0)
    runs = [replace(run, task=without, run_dir=run.run_dir + "-plain") for run in (whole, parts)]
    for run in runs:
        engine_of(run).run()
    assert losses(runs[1].run_dir) == pytest.approx(losses(runs[0].run_dir), rel=1e-4)


def test_lower_layers_learn_at_lower_rates(config: FinetuneConfig) -> None:
    engine = engine_of(replace(config, optim=replace(config.optim, layer_lr_decay=0.5)))
    engine.run()
    rates = {id(p): group["lr"] for group in engine.optimizer.param_groups for p in group["params"]}
    by_name = {name: rates[id(p)] for name, p in engine.model.named_parameters() if p.requires_grad}
    assert by_name["heads.weight"] == by_name["inner.1.weight"] == 2e-2
    assert {rate for name, rate in by_name.items() if name.startswith("encoder.layers.0.")} == {1e-2}
    assert by_name["encoder.embedding.weight"] == 5e-3


def test_patience_ends_a_run_by_the_metric(config: FinetuneConfig) -> None:
    schedule = replace(config.schedule, samples=64 * 20, patience=2)
    result = engine_of(replace(config, schedule=schedule, optim=OptimConfig(lr=1e-30))).run()
    assert result.status == "finished" and result.samples == 64 * 3


def test_a_run_folder_is_all_that_is_needed(config: FinetuneConfig, tmp_path: Path) -> None:
    assert train(config) == 0
    result = read_result(config.run_dir)["train"]
    assert result["status"] == "finished" and result["best_accuracy"] >= 0.9 and result["val"]["num_targets"] == 40
    import yaml

    stored = finetune_from_dict(yaml.safe_load((Path(config.run_dir) / "config.yaml").read_text()))
    assert stored.to_dict() == config.absolute().to_dict()
    (tmp_path / "encoder").rename(tmp_path / "gone")  # the run's own checkpoint knows the sizes
    assert train(stored) == 0
    with pytest.raises(ValueError, match=r"holds a run of another configuration \(optim.lr: 0.02 -> 1.0\)"):
        train(replace(config, optim=OptimConfig(lr=1.0)))


def test_several_labels(config: FinetuneConfig) -> None:
    task = replace(config.task, label_keys=["bad", "good"], metric="f1")
    result = engine_of(replace(config, task=task)).run()
    assert result.best is not None and result.best > 0.85


# ---- bad input --------------------------------------------------------------------------------------------------------


def test_a_part_of_every_class_is_cut_off(config: FinetuneConfig, tmp_path: Path) -> None:
    write_rows(tmp_path / "three.csv", 31, ("bad", "good", "odd"))
    task = TaskConfig(train=[str(tmp_path / "three.csv")], val_fraction=0.2)
    train_part, val = load_parts(task, seed=3)
    assert train_part.labels is not None and val.labels is not None and len(train_part) + len(val) == 31
    assert np.bincount(val.labels).tolist() == [2, 2, 2]
    assert not set(train_part.texts) & set(val.texts)
    again, _ = load_parts(task, seed=3)
    other, _ = load_parts(task, seed=4)
    assert again.texts == train_part.texts != other.texts
    lonely = replace(train_part, texts=train_part.texts[:3], labels=np.array([0, 1, 1]), rows=[1, 2, 3])
    with pytest.raises(ValueError, match=r"class bad has one row only, .* --task.val"):
        split_by_class(lonely, 0.2, 0)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"encoder": ""}, r"--encoder is missing: name the run folder"),
        ({"task": TaskConfig()}, r"--task.train is missing: name a file"),
        ({"log": LogConfig(noise_scale=True)}, r"--log.noise_scale is for language models"),
        ({"task": TaskConfig(train=["a.csv"], head_similarity_weight=0.1)}, r"needs --head.num_heads of at least 2"),
        (
            {
                "task": TaskConfig(train=["a.csv"], head_similarity_weight=0.1),
                "head": HeadConfig(num_heads=2),
                "parallel": ParallelConfig(strategy="fsdp"),
            },
            r"and --parallel.strategy ddp",
        ),
        ({"seed": -1}, r"--seed is -1"),
    ],
)
def test_what_cannot_be_is_one_line(config: FinetuneConfig, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(config, **options)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"label_key": "label", "label_keys": ["bad"]}, r"label_key and --task.label_keys are both given"),
        ({"val_fraction": 1.0}, r"--task.val_fraction is 1.0: it must lie between 0 and 1"),
        ({"lm_weight": -1.0}, r"--task.lm_weight is -1.0: it must not be negative"),
        ({"metric": "bleu"}, r"--task.metric is 'bleu': choose one of accuracy, f1, loss"),
        ({"class_weights": "some"}, r"--task.class_weights is 'some': choose one of none, balanced"),
    ],
)
def test_what_a_task_cannot_be_is_one_line(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TaskConfig(train=["a.csv"], **options)


def test_bad_files_and_encoders_are_told_before_anything_is_written(config: FinetuneConfig, tmp_path: Path) -> None:
    missing = replace(config, encoder=str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match=r"nothing does not exist: train a model first"):
        train(missing)
    assert not Path(config.run_dir).exists()
    unknown = replace(
        config, task=replace(config.task, val=[write_rows(tmp_path / "odd.csv", 9, ("bad", "odd", "good"))])
    )
    with pytest.raises(ValueError, match=r"label 'odd' is not among the classes bad, good"):
        train(unknown)
    assert not Path(config.run_dir).exists()
    assert train(config) == 0
    with pytest.raises(ValueError, match=r"is a fine-tuned classifier: name the language model it was made from"):
        train(replace(config, encoder=config.run_dir, run_dir=str(tmp_path / "second")))
