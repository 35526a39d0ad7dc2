"""Held-out bits per character: every byte of a split once, state carried, ranks sharing the lanes.

Rule of the number: the split's bytes in shuffled document order are read in `lanes` contiguous lanes; the state is zero at
the start of each lane and of each shard of the split; sum of -log2 p(byte) over all bytes, divided by their number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import nn

from ..data.streams import ByteStream, LaneStream
from .distributed import Ranks, sum_over_ranks
from .loss import sequence_loss
from .memory import is_out_of_memory
from .metrics import bits_per_char


@dataclass(frozen=True)
class EvalResult:
    """Loss over a split.

    Attributes:
        loss: nats per byte.
        bpc: bits per byte.
        num_targets: bytes scored.
        lanes: lanes the split was read in.
        seq_length: window of the pass; changes memory, not the result.
    """

    loss: float
    bpc: float
    num_targets: int
    lanes: int
    seq_length: int

    def to_dict(self) -> dict:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.bpc:.4f} bits per character over {self.num_targets:,} bytes"

    def row(self) -> dict:
        return {"loss": self.loss, "bpc": self.bpc, "num_targets": self.num_targets}


def evaluate_bpc(
    model: nn.Module,
    source: ByteStream,
    lanes: int = 32,
    seq_length: int = 256,
    ranks: Ranks | None = None,
    max_bytes: int = 0,
) -> EvalResult:
    """Scores a split.

    Args:
        model: a language model, or a policy around one.
        source: the split's bytes.
        lanes: rows read side by side; fewer rows start with a cold state less often, more are faster.
        seq_length: window.
        ranks: this process among several; each scores a share of the lanes, all get the whole result.
        max_bytes: stop once this many bytes are scored; 0 scores all.

    Raises:
        ValueError: if the split is empty, or the lanes do not fit in memory.
    """
    result = evaluate_until(lambda: False, model, source, lanes, seq_length, ranks, max_bytes)
    assert result is not None
    return result


@torch.no_grad()
def evaluate_until(
    should_stop: Callable[[], bool],
    model: nn.Module,
    source: ByteStream,
    lanes: int = 32,
    seq_length: int = 256,
    ranks: Ranks | None = None,
    max_bytes: int = 0,
) -> EvalResult | None:
    """`evaluate_bpc` that gives up, with None, once `should_stop()` says so.

    It is asked before every window, by all ranks alike, and must give all of them the same answer.
    """
    ranks = ranks or Ranks(device=next(model.parameters()).device)
    if source.num_tokens == 0:
        raise ValueError("the split to evaluate is empty: raise --data.val_fraction or --data.test_fraction")
    lanes = min(lanes, source.num_tokens)
    # The window adapts to a short split and the lanes do not, so that the number does not depend on the window.
    stream = LaneStream(source, lanes, min(seq_length, source.num_tokens // lanes), seed=None)
    own = range(ranks.rank * lanes // ranks.world_size, (ranks.rank + 1) * lanes // ranks.world_size)
    was_training = model.training
    model.eval()
    loss_sum, num_targets, scored, state = 0.0, 0, 0, None
    for window in range(stream.num_windows):
        if should_stop():
            model.train(was_training)
            return None
        if own:
            arrays = stream.read(own, window)
            tokens, reset, mask = (torch.from_numpy(array).to(ranks.device) for array in arrays)
            try:
                output = sequence_loss(model, tokens, reset, mask, state)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise ValueError(
                    f"out of memory on {ranks.device} while scoring {len(own)} lanes x {stream.seq_length} bytes: take "
                    "fewer lanes (log.eval_lanes) or a shorter window"
                ) from error
            loss_sum += float(output.loss_sum)
            num_targets += output.num_targets
            state = output.state
        scored += stream.num_targets(window)
        if max_bytes and scored >= max_bytes:
            break
    model.train(was_training)
    loss_sum, num_targets = sum_over_ranks([loss_sum, num_targets], ranks)
    loss = loss_sum / num_targets
    return EvalResult(loss, bits_per_char(loss), int(num_targets), lanes, seq_length)
