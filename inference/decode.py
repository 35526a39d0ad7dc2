"""Writing on from a prompt, byte by byte, with the recurrent state carried over and the weights prepared once.

A prompt is read once and its state kept for all streams that start from it. What a stream draws is decided by numbers of
its own. Rows of a batch do not influence one another, but matrix products of different shapes round differently, and a
draw at the edge between two bytes would then fall otherwise. So streams are decoded in blocks of exactly `BLOCK_ROWS`
rows, the last one filled up: stream i is always row i % `BLOCK_ROWS` of its block, and writes the same bytes however many
others are written with it. What a unit means is left to `sentiment/hold.py`, which hands in a hook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from ..models.recurrent import RecurrentState
from .sampling import Sampling, draw, probabilities
from .utf8 import MISSING, NEXT, START, allowed_bytes, state_after

# One stream costs a third more than alone (mLSTM, H 128 to 1024, one thread), and 16 rows reach 45 to 87 % of the throughput of 64.
BLOCK_ROWS = 16
PROMPT_WINDOW = 256
PLAIN = Sampling()

# Takes the state (L, BLOCK_ROWS, H) that the next byte will start from and returns the one to use instead.
StateHook = Callable[[RecurrentState], RecurrentState]


def decode(
    model: nn.Module,
    prompts: Sequence[bytes],
    num_bytes: int,
    sampling: Sampling = PLAIN,
    *,
    seed: int = 0,
    after_step: StateHook | None = None,
    progress: bool = False,
) -> list[bytes]:
    """Writes on from prompts, one stream for each.

    Stream i depends on its prompt, on (seed, i) and on the options, not on the other streams; and its first bytes do not
    depend on how many follow, but for the last three with `valid_utf8`.

    Args:
        model: Byte language model (`MLSTM`, `LSTM`) on its device; it is run in eval mode and left as it was.
        prompts: Bytes that each stream starts with, at least one; equal ones are read once.
        num_bytes: To be written by each stream.
        sampling: How a byte is chosen.
        seed: With the number of the stream, the seed of the stream's draws.
        after_step: Called with a block's state after its prompts and after every byte written but the last; may alter
            it. Rows that fill up a block are in it, too.
        progress: Show a bar on standard error, where that is a terminal.

    Returns:
        The bytes written by each stream, without its prompt.

    Raises:
        ValueError: A number out of range, an empty prompt, a prompt that ends inside a character which `num_bytes` cannot
            complete (with `valid_utf8`), or a model that does not read bytes.
    """
    _check(model, prompts, num_bytes, sampling, seed)
    written: list[bytes] = []
    blocks = [prompts[start : start + BLOCK_ROWS] for start in range(0, len(prompts), BLOCK_ROWS)]
    bar = tqdm(total=len(blocks) * num_bytes, unit="step", desc="generate", disable=None if progress else True)
    with bar, _evaluating(model):
        known = {prompt: read_prompt(model, prompt) for prompt in dict.fromkeys(prompts)}
        for number, block in enumerate(blocks):
            uniforms = np.stack(
                [
                    np.random.default_rng((seed, number * BLOCK_ROWS + row)).random(num_bytes)
                    for row in range(len(block))
                ]
            )
            written += _decode_block(model, block, known, uniforms, sampling, after_step, bar)
    return written


def read_prompt(model: nn.Module, prompt: bytes) -> tuple[Tensor, RecurrentState]:
    """Logits (1, V) of the byte after the prompt, and the state (L, 1, H) after it."""
    tokens = torch.frombuffer(bytearray(prompt), dtype=torch.uint8).to(_device(model)).expand(BLOCK_ROWS, -1)
    state: RecurrentState | None = None
    for piece in tokens[:, :-1].split(PROMPT_WINDOW, dim=1):
        if piece.shape[1]:
            _, state = model.encode(piece, state)  # type: ignore[operator]
    logits, after = model(tokens[:, -1:], state)
    return logits[:1, -1], after.select(torch.zeros(1, dtype=torch.long, device=tokens.device))


def _decode_block(
    model: nn.Module,
    block: Sequence[bytes],
    known: dict[bytes, tuple[Tensor, RecurrentState]],
    uniforms: np.ndarray,
    sampling: Sampling,
    after_step: StateHook | None,
    bar: tqdm,
) -> list[bytes]:
    """What the streams of one block write; `uniforms` (len(block), num_bytes) decide their draws."""
    rows = [known[prompt] for prompt in [*block, *[block[-1]] * (BLOCK_ROWS - len(block))]]
    logits = torch.cat([row[0] for row in rows])
    state = RecurrentState(
        torch.cat([row[1].hidden for row in rows], dim=1), torch.cat([row[1].cell for row in rows], dim=1)
    )
    num_bytes = uniforms.shape[1]
    out = np.zeros((BLOCK_ROWS, num_bytes), dtype=np.uint8)
    characters = np.array([state_after(prompt) for prompt in block])
    for step in range(num_bytes):
        state = state if after_step is None else after_step(state)
        allowed = allowed_bytes(characters, num_bytes - step) if sampling.valid_utf8 else None
        distribution = probabilities(logits[: len(block)].float().cpu().numpy(), sampling, allowed)
        chosen = draw(distribution, uniforms[:, step])
        out[: len(block), step] = chosen
        characters = np.maximum(NEXT[characters, chosen], START)
        if step + 1 < num_bytes:
            tokens = torch.from_numpy(out[:, step : step + 1].astype(np.int64)).to(state.hidden.device)
            step_logits, state = model(tokens, state)
            logits = step_logits[:, -1]
        bar.update()
    return [row.tobytes() for row in out[: len(block)]]


def _check(model: nn.Module, prompts: Sequence[bytes], num_bytes: int, sampling: Sampling, seed: int) -> None:
    vocab_size = _config(model).vocab_size
    if vocab_size != 256:
        raise ValueError(f"the model has a vocabulary of {vocab_size}; decoding writes bytes and needs 256")
    if num_bytes < 1:
        raise ValueError(f"num_bytes is {num_bytes}; it must be at least 1")
    if seed < 0:
        raise ValueError(f"the seed is {seed}; it must be 0 or above")
    for number, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompt {number} is empty; at least one byte must be read before any is written")
        missing = int(MISSING[state_after(prompt)])
        if sampling.valid_utf8 and missing > num_bytes:
            raise ValueError(
                f"prompt {number} ends inside a character that needs {missing} more bytes, but num_bytes is {num_bytes}"
            )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off, no gradients and weights prepared once inside; the model's mode is put back afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), model.frozen():  # type: ignore[operator]
            yield
    finally:
        model.train(was_training)


def _config(model: nn.Module) -> Any:
    return model.config


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
