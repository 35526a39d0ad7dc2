"""Decoding with a cached state against whole passes without one; seeds, batches, hooks, valid UTF-8 and errors."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from bigbatch.inference.decode import BLOCK_ROWS, decode, read_prompt
from bigbatch.inference.sampling import Sampling
from bigbatch.models.config import LSTMConfig, MLSTMConfig
from bigbatch.models.lstm import LSTM
from bigbatch.models.mlstm import MLSTM
from bigbatch.models.recurrent import RecurrentLanguageModel, RecurrentState
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

PROMPTS = [b"\n It", b"\n The lid broke", b"\n It", "\n été 日".encode(), b"\n " + b"long " * 120]
GREEDY = Sampling(temperature=0)


def build(
    kind: str = "mlstm", num_layers: int = 1, hidden_size: int = 24, dropout: float = 0.5
) -> RecurrentLanguageModel:
    torch.manual_seed(0)
    config = {"hidden_size": hidden_size, "embedding_size": 8, "num_layers": num_layers, "dropout": dropout}
    model = MLSTM(MLSTMConfig(**config)) if kind == "mlstm" else LSTM(LSTMConfig(**config))
    with torch.no_grad():  # larger logits than those of a new model, so that the choice depends on the state
        model.output.weight.mul_(8)
    return model.eval()


def uncached(model: RecurrentLanguageModel, prompt: bytes, num_bytes: int) -> bytes:
    """The definition: the whole text through the model again for every byte, in fp64."""
    model = model.double()
    data = list(prompt)
    for _ in range(num_bytes):
        with torch.no_grad():
            logits, _ = model(torch.tensor([data]))
        data.append(int(logits[0, -1].argmax()))
    return bytes(data[len(prompt) :])


@pytest.mark.parametrize(("kind", "num_layers"), [("mlstm", 1), ("mlstm", 2), ("lstm", 1)])
def test_greedy_is_the_argmax_of_whole_passes(kind: str, num_layers: int) -> None:
    found = decode(build(kind, num_layers), PROMPTS, 40, GREEDY)
    expected = [uncached(build(kind, num_layers), prompt, 40) for prompt in PROMPTS]
    assert found == expected
    assert len(set(found)) > 2  # or the state had no part in it


def test_logits_and_state_after_a_prompt_are_those_of_one_pass() -> None:
    model = build()
    for prompt in PROMPTS:
        with torch.no_grad():
            logits, state = read_prompt(model, prompt)
            expected, final = model(torch.tensor([list(prompt)]))
        torch.testing.assert_close(logits, expected[:, -1], atol=2e-5, rtol=0)
        torch.testing.assert_close(state.cell, final.cell, atol=2e-6, rtol=0)
        torch.testing.assert_close(state.hidden, final.hidden, atol=2e-6, rtol=0)


def test_sampled_bytes_follow_the_softmax() -> None:
    model, prompt, n = build(hidden_size=8), b"\n a", 6000
    with torch.no_grad():
        logits, _ = model.double()(torch.tensor([list(prompt)]))
    expected = n * logits[0, -1].softmax(dim=-1).numpy()
    model = build(hidden_size=8)
    found = np.bincount(np.frombuffer(b"".join(decode(model, [prompt] * n, 1)), np.uint8), minlength=256)
    often = expected >= 10
    merged = [*found[often], found[~often].sum()], [*expected[often], expected[~often].sum()]
    assert len(merged[0]) > 20 and chisquare(*merged).pvalue > 1e-3


def test_a_stream_is_the_same_however_many_there_are() -> None:
    model = build(hidden_size=200)  # wide enough for products of other shapes to round differently
    whole = decode(model, [PROMPTS[i % 5] for i in range(3 * BLOCK_ROWS + 1)], 60, seed=3)
    for n in (1, 2, 5, 8, BLOCK_ROWS, BLOCK_ROWS + 1, 40):
        assert decode(model, [PROMPTS[i % 5] for i in range(n)], 60, seed=3) == whole[:n]
    assert len(set(whole)) == len(whole)  # equal prompts, other draws


def test_what_follows_does_not_change_what_was_written() -> None:
    model = build()
    long = decode(model, PROMPTS, 50, seed=1)
    assert [text[:20] for text in long] == decode(model, PROMPTS, 20, seed=1)
    assert decode(model, PROMPTS, 50, seed=2) != long
    state = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    assert decode(model, PROMPTS, 50, seed=1) == long
    assert torch.equal(torch.get_rng_state(), state[0]) and np.array_equal(np.random.get_state()[1], state[1])  # type: ignore[index]


def test_model_is_left_as_it_was() -> None:
    model = build().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    decode(model, PROMPTS[:1], 5)
    assert model.training and all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        model.output.bias[65] += 100.0
    assert decode(model, PROMPTS[:1], 5) == [b"AAAAA"]  # weights of before are not kept
    model(torch.zeros((1, 2), dtype=torch.long))[0].sum().backward()


def test_hook_sees_and_alters_every_state() -> None:
    model, seen = build(), []

    def watch(state: RecurrentState) -> RecurrentState:
        seen.append(state.cell[:, : len(PROMPTS)].clone())
        return state

    written = decode(model, PROMPTS, 12, GREEDY, after_step=watch)
    assert written == decode(model, PROMPTS, 12, GREEDY) and len(seen) == 12
    for row, (prompt, text) in enumerate(zip(PROMPTS, written)):
        with torch.no_grad():
            _, _, cells = model.encode(torch.tensor([list(prompt + text)]), return_cells=True)
        expected = cells[0, len(prompt) - 1 : -1]
        torch.testing.assert_close(torch.stack([cell[-1, row] for cell in seen]), expected, atol=2e-6, rtol=0)

    def forget(state: RecurrentState) -> RecurrentState:
        return RecurrentState(torch.zeros_like(state.hidden), torch.zeros_like(state.cell))

    # With a state of zeros every byte is written from the one before alone.
    forgetful = decode(model, PROMPTS, 12, GREEDY, after_step=forget)
    for text in forgetful:
        for before, after in pairwise(text):
            assert uncached(build(), bytes([before]), 1) == bytes([after])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_bytes=st.integers(1, 24),
    prompt=st.text(max_size=6),
    temperature=st.sampled_from([0.0, 1.0, 5.0]),
    top_k=st.sampled_from([0, 1, 2]),
    cut=st.integers(0, 3),
)
def test_only_valid_utf8_comes_out(
    seed: int, num_bytes: int, prompt: str, temperature: float, top_k: int, cut: int
) -> None:
    # A prompt may end inside a character; the bytes written complete it.
    data = b"\n" + prompt.encode() + "😀".encode()[: cut if num_bytes >= 3 else 0]
    sampling = Sampling(temperature, top_k, 1.0, valid_utf8=True)
    for text in decode(build(hidden_size=8), [data] * 3, num_bytes, sampling, seed=seed):
        assert len(text) == num_bytes
        (data + text).decode()


def test_without_the_mask_the_same_model_writes_broken_bytes() -> None:
    with pytest.raises(UnicodeDecodeError):
        decode(build(hidden_size=8), [b"\n"], 24, Sampling(temperature=5.0))[0].decode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_bytes": 0}, "num_bytes is 0; it must be at least 1"),
        ({"seed": -1}, "the seed is -1; it must be 0 or above"),
        ({"prompts": [b"a", b""]}, "prompt 1 is empty; at least one byte"),
        (
            {"prompts": [b"\xf0"], "num_bytes": 2, "sampling": Sampling(valid_utf8=True)},
            "prompt 0 ends inside a character that needs 3 more bytes, but num_bytes is 2",
        ),
        ({"model": MLSTM(MLSTMConfig(vocab_size=300, hidden_size=4))}, "vocabulary of 300; decoding writes bytes"),
    ],
)
def test_errors(change: dict, message: str) -> None:
    options = {"model": build(), "prompts": [b"a"], "num_bytes": 3, **change}
    with pytest.raises(ValueError, match=message):
        decode(**options)


def test_no_prompts_no_streams() -> None:
    assert decode(build(), [], 5) == []
