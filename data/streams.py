"""Lanes for truncated back-propagation: which bytes a batch reads, as a function of the position alone.

One epoch is a **virtual stream**: the stretches ("intervals") of the shuffled documents that are still unread, one after
the other. Lane b of B reads the contiguous part [b*N/B, (b+1)*N/B) of it in windows of `seq_length` targets, so that
recurrent state can be carried from window to window. Every byte of the stream is a target exactly once an epoch.

The position is an explicit value that serialises to JSON. It counts lanes of the *global* batch: any number of ranks
reads the same samples in the same order, each rank its own lanes. This module knows nothing of ranks or torch.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np

from .splits import DocumentOrder
from .token_store import TokenStore

# Fed before the first byte of a stream: documents start with a newline, so one more tells the model nothing.
START_TOKEN = 0x0A
RESET_MODES = ("shard", "sample", "never")


class ByteStream(Protocol):
    """What a lane reads from: documents in their shuffled order, as one long run of bytes."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def shard_starts(self) -> np.ndarray: ...

    def read(self, start: int, stop: int) -> np.ndarray: ...


@dataclass(frozen=True)
class OrderedStore:
    """A token store read in a given order of its documents: `store` and `order` seen as one `ByteStream`."""

    store: TokenStore
    order: DocumentOrder

    @property
    def num_tokens(self) -> int:
        return self.order.num_tokens

    @property
    def shard_starts(self) -> np.ndarray:
        return self.order.shard_starts

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.order.read(self.store, start, stop)


class Window(NamedTuple):
    """One window of some lanes.

    Attributes:
        tokens: uint8 (B, T+1); inputs are `tokens[:, :-1]`, targets `tokens[:, 1:]`.
        reset: bool (B, T); True where the recurrent state is zeroed before that input is read.
        mask: bool (B, T); False where a lane has ended: such targets do not count.
    """

    tokens: np.ndarray
    reset: np.ndarray
    mask: np.ndarray


@dataclass(frozen=True)
class StreamPosition:
    """Where a run stands in its data. Everything needed to go on, independent of the number of ranks.

    Attributes:
        epoch: completed passes over the data.
        window: windows already read in this split of the epoch; all lanes advance together.
        num_lanes: lanes of the global batch that the epoch's unread part was split into.
        unread: None at the natural split (whole shards, permuted by seed and epoch); otherwise the intervals
            [start, stop) that were unread when the global batch changed within the epoch.
    """

    epoch: int = 0
    window: int = 0
    num_lanes: int = 0
    unread: tuple[tuple[int, int], ...] | None = None

    def to_json(self) -> dict:
        unread = None if self.unread is None else [list(pair) for pair in self.unread]
        return {"epoch": self.epoch, "window": self.window, "num_lanes": self.num_lanes, "unread": unread}

    @classmethod
    def from_json(cls, value: dict) -> StreamPosition:
        unread = value["unread"]
        pairs = None if unread is None else tuple((int(a), int(b)) for a, b in unread)
        return cls(int(value["epoch"]), int(value["window"]), int(value["num_lanes"]), pairs)


class LaneStream:
    """Reads windows of lanes and moves the position; the only state is `position`.

    Args:
        source: the shuffled bytes.
        num_lanes: lanes of the global batch, B.
        seq_length: targets of one window, T.
        seed: permutes the shards anew in every epoch; None keeps their order (evaluation).
        reset: "shard" zeroes the state at lane and shard starts, "sample" at every window, "never" at lane starts only.
        position: where to go on; None starts at the beginning.

    Raises:
        ValueError: if the data is shorter than one window of every lane.
    """

    def __init__(
        self,
        source: ByteStream,
        num_lanes: int,
        seq_length: int,
        seed: int | None = 0,
        reset: str = "shard",
        position: StreamPosition | None = None,
    ) -> None:
        if reset not in RESET_MODES:
            raise ValueError(f"data.reset is {reset!r}: choose one of {', '.join(RESET_MODES)}")
        self.source = source
        self.seq_length = seq_length
        self.seed = seed
        self.reset = reset
        self.check_length(num_lanes)
        self.position = position or StreamPosition(num_lanes=num_lanes)
        if self.position.num_lanes != num_lanes:
            self.position = self._resplit(num_lanes)
        self._layout()

    def check_length(self, num_lanes: int) -> None:
        """Raises ValueError if the data is shorter than one window of each of so many lanes."""
        length, needed = self.source.num_tokens, num_lanes * self.seq_length
        if length < needed:
            raise ValueError(
                f"the corpus has {length:,} bytes to train on, less than one window of {self.seq_length} bytes for each of "
                f"{num_lanes} lanes ({needed:,}): use more text, a smaller --batch.global_batch_size or a shorter "
                "--batch.seq_length"
            )

    def _shards(self, epoch: int) -> list[tuple[int, int]]:
        starts = [int(s) for s in self.source.shard_starts]
        shards = list(zip(starts, [*starts[1:], self.source.num_tokens]))
        if self.seed is not None:
            order = np.random.Generator(np.random.PCG64([self.seed, epoch])).permutation(len(shards))
            shards = [shards[i] for i in order]
        return [pair for pair in shards if pair[1] > pair[0]]

    def _layout(self) -> None:
        """Derives what reading needs from `position`: the intervals, where each starts in the virtual stream, the lanes."""
        self._intervals = list(self.position.unread or self._shards(self.position.epoch))
        self._starts = [0, *accumulate(stop - start for start, stop in self._intervals)]
        total, lanes = self._starts[-1], self.position.num_lanes
        self._lane_bounds = [b * total // lanes for b in range(lanes + 1)]
        self._lane_lengths = np.diff(np.asarray(self._lane_bounds, dtype=np.int64))
        self.num_windows = -(-int(self._lane_lengths.max()) // self.seq_length)

    def _resplit(self, num_lanes: int) -> StreamPosition:
        """The unread rest of every lane, in lane order, cut anew into `num_lanes` lanes."""
        self._layout()
        unread = []
        for start, stop in zip(self._lane_bounds, self._lane_bounds[1:]):
            unread += self._pieces(min(start + self.position.window * self.seq_length, stop), stop)
        if self.position.window == 0 and self.position.unread is None:
            return StreamPosition(self.position.epoch, 0, num_lanes)
        assert unread, "advance() begins the next epoch when all is read"
        return StreamPosition(self.position.epoch, 0, num_lanes, tuple(unread))

    def set_num_lanes(self, num_lanes: int) -> None:
        """Changes the global batch: the unread bytes are split anew, all lanes start with zero state.

        Raises:
            ValueError: if the data is shorter than one window of every lane.
        """
        self.check_length(num_lanes)
        self.position = self._resplit(num_lanes)
        self._layout()

    def _pieces(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Intervals of the source under [start, stop) of the virtual stream."""
        pieces = []
        index = bisect_right(self._starts, start) - 1
        while start < stop:
            low, high = self._intervals[index]
            offset = start - self._starts[index]
            length = min(stop - start, high - low - offset)
            pieces.append((low + offset, low + offset + length))
            start, index = start + length, index + 1
        return pieces

    def num_targets(self, window: int | None = None) -> int:
        """Targets of one window summed over all lanes of the global batch; no data is read."""
        done = (self.position.window if window is None else window) * self.seq_length
        return int(np.clip(self._lane_lengths - done, 0, self.seq_length).sum())

    def read(self, lanes: range, window: int | None = None) -> Window:
        """Reads one window (the current one by default) of some lanes of the global batch; the position stays."""
        window = self.position.window if window is None else window
        length = self.seq_length
        tokens = np.full((len(lanes), length + 1), START_TOKEN, np.uint8)
        reset = np.zeros((len(lanes), length), np.bool_)
        mask = np.zeros((len(lanes), length), np.bool_)
        if window == 0 or self.reset == "sample":
            reset[:, 0] = True
        for row, lane in enumerate(lanes):
            start = self._lane_bounds[lane] + window * length
            stop = min(start + length, self._lane_bounds[lane + 1])
            if start >= stop:
                continue
            mask[row, : stop - start] = True
            first = max(start - 1, 0)  # the input of the first target is the byte before it
            row_tokens = [self.source.read(low, high) for low, high in self._pieces(first, stop)]
            filled = np.concatenate(row_tokens) if len(row_tokens) > 1 else row_tokens[0]
            tokens[row, 1 - (start - first) : stop - start + 1] = filled
            if self.reset == "shard":
                index = bisect_right(self._starts, start - 1)  # walked, not sliced: after a ramp there are many
                while index < len(self._starts) and (boundary := self._starts[index]) < stop:
                    reset[row, boundary - start] = True
                    index += 1
        return Window(tokens, reset, mask)

    def advance(self) -> None:
        """Moves to the next window, and to the next epoch after the last one."""
        position = self.position
        if position.window + 1 < self.num_windows:
            self.position = StreamPosition(position.epoch, position.window + 1, position.num_lanes, position.unread)
        else:
            self.position = StreamPosition(position.epoch + 1, 0, position.num_lanes)
            self._layout()
