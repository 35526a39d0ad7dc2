"""GPT through the one loop: against a plain PyTorch loop, resume, fp16, validation by a slow route, bad input."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from bigbatch.data.config import DataConfig
from bigbatch.data.gpt_samples import GPTSamples
from bigbatch.data.splits import Splits, make_order
from bigbatch.data.token_store import TokenStore, TokenStoreWriter
from bigbatch.fp16.config import LossScaleConfig
from bigbatch.models.build import build_model
from bigbatch.models.transformer_config import GPTConfig
from bigbatch.training.checkpoint import load_model
from bigbatch.training.config import BatchConfig, LogConfig, OptimConfig, ScheduleConfig, TrainConfig, config_from_dict
from bigbatch.training.distributed import Ranks
from bigbatch.training.engine import Engine
from bigbatch.training.memory import check_memory
from bigbatch.training.metrics import read_metrics
from bigbatch.training.run import train
from bigbatch.training.tasks.gpt import GPTTask, score_tokens
from bigbatch.training.vocabulary import check_vocabulary
from torch.nn import functional as F

MODEL = GPTConfig(
    vocab_size=256, max_position_embeddings=16, hidden_size=16, num_layers=2, num_attention_heads=2, dropout=0.0,
    attention_dropout=0.0,
)  # fmt: skip


def make_store(prefix: Path, dtype: str = "u1", metadata: dict | None = None, top: int = 0) -> TokenStore:
    """Forty documents of a few words in an order of their own; `top` is one id more, in the last."""
    random = np.random.Generator(np.random.PCG64(0))
    words = [b"the film ", b"is good. ", b"is bad. ", b"and so "]
    with TokenStoreWriter(prefix, dtype, metadata) as writer:
        for number in range(40):
            text = b"\n" + b"".join(words[k] for k in random.integers(0, 4, 6 + number % 5))
            tokens = np.frombuffer(text, np.uint8).astype(dtype)
            writer.add(np.append(tokens, np.array([top], dtype)) if top and number == 39 else tokens)
    return TokenStore(prefix)


def splits_of(store: TokenStore) -> Splits:
    ids = np.arange(store.num_documents)
    return Splits(*(make_order(store, part) for part in (ids[8:], ids[4:8], ids[:4])))


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return make_store(tmp_path / "store")


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    """20 steps of 8 sequences of 16: more than one epoch."""
    return TrainConfig(
        model=MODEL,
        batch=BatchConfig(global_batch_size=8, seq_length=16),
        optim=OptimConfig(lr=1e-2, clip_grad_norm=0.0),
        schedule=ScheduleConfig(samples=160, decay="constant"),
        loss_scale=LossScaleConfig(init_scale=2.0**10),
        log=LogConfig(interval_samples=8, eval_interval_samples=40, checkpoint_interval_samples=24, progress=False),
        run_dir=str(tmp_path / "run"),
        precision="fp32",
        device="cpu",
    )


def engine_of(config: TrainConfig, store: TokenStore) -> Engine:
    Path(config.run_dir).mkdir(parents=True, exist_ok=True)
    return Engine(config, Ranks(), GPTTask(config, Ranks(), store, splits_of(store)), store.content_hash)


def losses(config: TrainConfig, event: bool = False) -> list[float]:
    return [row["loss"] for row in read_metrics(config.run_dir) if ("event" in row) == event]


def test_losses_are_those_of_a_plain_loop(config: TrainConfig, store: TokenStore) -> None:
    engine_of(replace(config, batch=replace(config.batch, micro_batch_size=2)), store).run()
    torch.manual_seed(config.seed)
    model = build_model(MODEL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    samples = GPTSamples(store, splits_of(store).train.doc_ids, 16, config.seed)
    expected = []
    for first in range(0, 160, 8):
        tokens = torch.from_numpy(np.stack([samples.read(i) for i in range(first, first + 8)]).astype(np.int64))
        loss = F.cross_entropy(model(tokens[:, :-1])[0].reshape(128, -1), tokens[:, 1:].reshape(128))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    assert losses(config) == pytest.approx(expected, rel=1e-4)
    assert expected[-1] < 0.7 * expected[0]
    rows = read_metrics(config.run_dir)
    assert rows[0]["bpc"] == pytest.approx(rows[0]["loss"] / math.log(2)) and "ppl" not in rows[0]
    assert rows[0]["tokens"] == 128


def test_stopped_and_resumed_is_uninterrupted_to_the_bit(config: TrainConfig, store: TokenStore) -> None:
    dropout = replace(config, model=replace(MODEL, dropout=0.1, attention_dropout=0.1))
    whole, parts = dropout, replace(dropout, run_dir=config.run_dir + "-parts")
    engine_of(whole, store).run()
    for stop in (3, 9):
        engine = engine_of(parts, store)
        advance, steps = engine.task.advance, [engine.trainer["step"]]

        def counted(engine: Engine = engine, advance=advance, steps: list[int] = steps, stop: int = stop) -> None:
            advance()
            steps[0] += 1
            if steps[0] == stop:
                engine.request_stop()

        engine.task.advance = counted  # pyright: ignore
        assert engine.run().status == "stopped"
    last = engine_of(parts, store)
    last.run()
    keys = ("loss", "grad_norm", "samples")
    ours, theirs = ([{k: r.get(k) for k in keys} for r in read_metrics(c.run_dir)] for c in (whole, parts))
    assert ours == theirs
    models = [load_model(c.run_dir, which="latest", kinds=("gpt",)).model.state_dict() for c in (whole, parts)]
    assert all(torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())


def test_fp16_follows_fp32(config: TrainConfig, store: TokenStore) -> None:
    half = replace(config, precision="fp16", run_dir=config.run_dir + "-half")
    engine_of(config, store).run()
    engine_of(half, store).run()
    assert losses(half) == pytest.approx(losses(config), rel=2e-2)
    assert losses(half) != losses(config)


@pytest.mark.parametrize("rows", [1, 4])
def test_validation_scores_every_token_but_the_first(store: TokenStore, rows: int) -> None:
    torch.manual_seed(1)
    model, text = build_model(MODEL), splits_of(store).val
    tokens = torch.from_numpy(text.read(store, 0, text.num_tokens).astype(np.int64))
    expected = 0.0
    for place in range(1, len(tokens)):
        start = (place - 1) // 16 * 16
        expected -= float(model(tokens[None, start:place])[0][0, -1].double().log_softmax(0)[tokens[place]].detach())
    source = type("Stream", (), {"num_tokens": len(tokens), "read": lambda self, a, b: tokens[a:b].numpy()})()
    loss_sum, count = score_tokens(model, source, 16, rows, Ranks()) or (0.0, 0)
    assert count == len(tokens) - 1
    assert loss_sum == pytest.approx(expected, rel=1e-5)
    assert (score_tokens(model, source, 16, rows, Ranks(), max_tokens=20) or (0, 0))[1] == 32
    assert score_tokens(model, source, 16, rows, Ranks(), should_stop=lambda: True) is None


def test_bytes_of_subword_tokens(config: TrainConfig, tmp_path: Path) -> None:
    record = {"tokenizer": {"name": "t", "hash": "h", "vocab_size": 256}}
    store = make_store(tmp_path / "words", "<u2", record)
    store.metadata["text_bytes"] = 3 * store.num_tokens
    task = engine_of(config, store).task
    assert task.metric == "bpc"
    assert task.loss_columns(2.0) == {"bpc": pytest.approx(2.0 / math.log(2) / 3), "ppl": pytest.approx(math.exp(2.0))}
    store = make_store(tmp_path / "unknown", "<u2")
    task = engine_of(replace(config, run_dir=config.run_dir + "2"), store).task
    assert task.metric == "loss" and list(task.loss_columns(2.0)) == ["ppl"]


def test_a_run_by_its_folder(config: TrainConfig, store: TokenStore) -> None:
    data = DataConfig(paths=[], store=str(store.prefix), min_heldout_bytes=200, keep_duplicates_together=False)
    config = replace(config, data=data)
    assert train(config) == 0
    loaded = load_model(config.run_dir, kinds=("gpt",))
    assert loaded.model.config == MODEL
    assert config_from_dict(loaded.config).model == MODEL
    with pytest.raises(ValueError, match="kind 'gpt'; what is needed here is one of mlstm, lstm"):
        load_model(config.run_dir)
    check_memory(config, 1)
    with pytest.raises(ValueError, match="parameters: with gradients and optimizer state"):
        check_memory(replace(config, model=replace(MODEL, hidden_size=200_000, num_layers=50)), 1)


def test_weights_of_another_tokenizer_are_refused(config: TrainConfig, store: TokenStore, tmp_path: Path) -> None:
    engine_of(config, store).run()
    other = make_store(tmp_path / "words", "<u2", {"tokenizer": {"name": "t", "hash": "h", "vocab_size": 256}})
    follower = replace(config, init_from=config.run_dir, run_dir=config.run_dir + "-next")
    with pytest.raises(ValueError, match="another tokenizer than the store's"):
        engine_of(follower, other)
    engine = engine_of(follower, store)
    best = load_model(config.run_dir, kinds=("gpt",)).model.state_dict()
    assert all(torch.equal(tensor, best[name]) for name, tensor in engine.model.state_dict().items())


def test_what_cannot_be_trained(config: TrainConfig, store: TokenStore, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"seq_length is 17, longer than the model's 16 positions"):
        replace(config, batch=BatchConfig(global_batch_size=8, seq_length=17))
    with pytest.raises(ValueError, match=r"too few for one batch of 1000 x 16"):
        engine_of(replace(config, batch=BatchConfig(global_batch_size=1000, seq_length=16)), store)
    with pytest.raises(ValueError, match=r"256 different tokens, and --model.vocab_size is 50,257: give 256"):
        check_vocabulary(GPTConfig(), store)
    unknown = make_store(tmp_path / "unknown", "<u2", top=300)
    check_vocabulary(replace(MODEL, vocab_size=301), unknown)
    unknown.metadata.clear()
    with pytest.raises(ValueError, match=r"token id 300 in document 39 .* vocabulary of 256 tokens"):
        check_vocabulary(MODEL, unknown)
