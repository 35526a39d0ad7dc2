"""Lanes: every byte once an epoch, in the right lane, with state zeroed where it must be and nowhere else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from bigbatch.data.splits import make_order
from bigbatch.data.streams import START_TOKEN, LaneStream, OrderedStore, StreamPosition
from bigbatch.data.token_store import TokenStore, TokenStoreWriter
from hypothesis import given, settings
from hypothesis import strategies as st


@dataclass
class ArraySource:
    """A byte stream held in memory."""

    data: np.ndarray
    shard_starts: np.ndarray

    @property
    def num_tokens(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int) -> np.ndarray:
        assert 0 <= start < stop <= len(self.data)
        return self.data[start:stop]


class Reader:
    """A lane stream over bytes that are their own positions: two streams in step, one holds the low byte, one the high."""

    def __init__(self, length: int, lanes: int, window: int, shards: list[int], **options) -> None:
        where, starts = np.arange(length), np.asarray(shards)
        halves = [(where % 256).astype(np.uint8), (where // 256).astype(np.uint8)]
        self.streams = [LaneStream(ArraySource(half, starts), lanes, window, **options) for half in halves]

    @property
    def main(self) -> LaneStream:
        return self.streams[0]

    def window(self, lanes: range | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Source positions of inputs and targets (B, T+1), reset, mask."""
        lanes = range(self.main.position.num_lanes) if lanes is None else lanes
        low, high = (stream.read(lanes) for stream in self.streams)
        assert (low.reset == high.reset).all() and (low.mask == high.mask).all()
        return low.tokens + 256 * high.tokens.astype(np.int64), low.reset, low.mask

    def advance(self) -> None:
        for stream in self.streams:
            stream.advance()

    def set_num_lanes(self, lanes: int) -> None:
        for stream in self.streams:
            stream.set_num_lanes(lanes)

    def rest_of_epoch(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Source positions of the targets of each lane and their reset flags, until the epoch ends."""
        epoch, lanes = self.main.position.epoch, self.main.position.num_lanes
        targets, resets = [[] for _ in range(lanes)], [[] for _ in range(lanes)]
        while self.main.position.epoch == epoch:
            tokens, reset, mask = self.window()
            assert mask.sum() == self.main.num_targets()
            for lane in range(lanes):
                targets[lane].append(tokens[lane, 1:][mask[lane]])
                resets[lane].append(reset[lane][mask[lane]])
            self.advance()
        return [np.concatenate(t) for t in targets], [np.concatenate(r) for r in resets]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, int, int, list[int]]:
    lanes, window = draw(st.integers(1, 7)), draw(st.integers(1, 9))
    length = draw(st.integers(lanes * window, lanes * window + 400))
    cuts = draw(st.lists(st.integers(1, length - 1), max_size=6, unique=True)) if length > 1 else []
    return length, lanes, window, [0, *sorted(cuts)]


@settings(max_examples=150, deadline=None)
@given(layouts())
def test_lane_b_reads_its_contiguous_part_of_the_stream(layout: tuple[int, int, int, list[int]]) -> None:
    length, lanes, window, shards = layout
    targets, resets = Reader(length, lanes, window, shards, seed=None).rest_of_epoch()
    for lane in range(lanes):
        start, stop = lane * length // lanes, (lane + 1) * length // lanes
        assert targets[lane].tolist() == list(range(start, stop))
        expected = [at == start or at in shards for at in range(start, stop)]
        assert resets[lane].tolist() == expected


@settings(max_examples=100, deadline=None)
@given(layouts(), st.integers(0, 5))
def test_every_byte_is_a_target_once_in_every_epoch(layout: tuple[int, int, int, list[int]], seed: int) -> None:
    length, lanes, window, shards = layout
    reader = Reader(length, lanes, window, shards, seed=seed)
    ends = [*shards[1:], length]
    for epoch in range(2):
        assert reader.main.position.epoch == epoch
        order = np.concatenate(reader.rest_of_epoch()[0])
        assert sorted(order.tolist()) == list(range(length))
        # Shards are permuted, never cut: inside one, each byte follows the one before it.
        jumps = np.flatnonzero(np.diff(order) != 1)
        assert all(order[j] + 1 in ends and order[j + 1] in shards for j in jumps)


def test_shards_are_permuted_by_seed_and_epoch() -> None:
    shards = list(range(0, 400, 10))

    def order(seed: int | None) -> list[list[int]]:
        reader = Reader(400, 2, 5, shards, seed=seed)
        return [np.concatenate(reader.rest_of_epoch()[0]).tolist() for _ in range(2)]

    first, second = order(3)
    assert first != second and first != list(range(400))
    assert order(3) == [first, second] and order(4)[0] != first
    assert order(None) == [list(range(400))] * 2


@settings(max_examples=60, deadline=None)
@given(layouts(), st.sampled_from(["sample", "never"]))
def test_reset_modes(layout: tuple[int, int, int, list[int]], mode: str) -> None:
    length, lanes, window, shards = layout
    reader = Reader(length, lanes, window, shards, seed=None, reset=mode)
    while reader.main.position.epoch == 0:
        number = reader.main.position.window
        _, reset, _ = reader.window()
        assert not reset[:, 1:].any()
        assert reset[:, 0].tolist() == [number == 0 or mode == "sample"] * lanes
        reader.advance()
    assert reader.window()[1][:, 0].all()  # a new epoch starts its lanes anew


def test_inputs_are_the_bytes_before_the_targets() -> None:
    data = np.arange(50, 90, dtype=np.uint8)
    stream = LaneStream(ArraySource(data, np.asarray([0, 15])), 2, 8, seed=None)
    tokens = stream.read(range(2)).tokens
    assert tokens[0].tolist() == [START_TOKEN, *range(50, 58)]
    assert tokens[1].tolist() == list(range(69, 78))  # the first input of a later lane is the byte before it
    assert stream.read(range(1, 2), window=1).tokens[0].tolist() == list(range(77, 86))


def test_the_last_window_is_masked() -> None:
    stream = LaneStream(ArraySource(np.zeros(23, np.uint8), np.asarray([0])), 2, 5, seed=None)  # lanes of 11 and 12
    assert stream.num_windows == 3
    assert [stream.num_targets(window) for window in range(3)] == [10, 10, 3]
    assert stream.read(range(2), 2).mask.tolist() == [[True] + [False] * 4, [True] * 2 + [False] * 3]
    assert stream.read(range(2), 2).tokens.shape == (2, 6)


def test_a_lane_that_ends_a_window_early_reads_nothing_more() -> None:
    stream = LaneStream(ArraySource(np.full(21, 7, np.uint8), np.asarray([0])), 2, 5, seed=None)  # lanes of 10 and 11
    last = stream.read(range(2), 2)
    assert last.mask.sum(axis=1).tolist() == [0, 1] and stream.num_targets(2) == 1
    assert (last.tokens[0] == START_TOKEN).all() and not last.reset[0].any()


@settings(max_examples=60, deadline=None)
@given(layouts(), st.integers(0, 40), st.integers(0, 40))
def test_a_position_that_went_through_json_goes_on_identically(
    layout: tuple[int, int, int, list[int]], before: int, lane_change: int
) -> None:
    length, lanes, window, shards = layout
    reader = Reader(length, lanes, window, shards, seed=1)
    for step in range(before):
        if step == lane_change:
            reader.set_num_lanes(min(lanes + 1, length // window))
        reader.advance()
    position = StreamPosition.from_json(json.loads(json.dumps(reader.main.position.to_json())))
    assert position == reader.main.position
    other = Reader(length, position.num_lanes, window, shards, seed=1, position=position)
    for _ in range(2 * reader.main.num_windows):
        assert all((a == b).all() for a, b in zip(reader.window(), other.window()))
        assert reader.main.position == other.main.position
        reader.advance()
        other.advance()


@settings(max_examples=150, deadline=None)
@given(layouts(), st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9)), min_size=1, max_size=3))
def test_another_number_of_lanes_reads_each_remaining_byte_once(
    layout: tuple[int, int, int, list[int]], changes: list[tuple[int, int]]
) -> None:
    length, lanes, window, shards = layout
    reader = Reader(length, lanes, window, shards, seed=2)
    seen: list[int] = []
    changes = [(windows, min(new_lanes, length // window)) for windows, new_lanes in changes]
    for windows, new_lanes in changes:
        for _ in range(windows):
            if reader.main.position.window + 1 >= reader.main.num_windows:
                break  # stay within the epoch
            tokens, _, mask = reader.window()
            seen += tokens[:, 1:][mask].tolist()
            reader.advance()
        reader.set_num_lanes(new_lanes)
        assert reader.main.position.num_lanes == new_lanes and reader.main.position.epoch == 0
    targets, resets = reader.rest_of_epoch()
    assert sorted(seen + np.concatenate(targets).tolist()) == list(range(length))
    for lane, flags in zip(targets, resets):
        # Zero state wherever a byte does not follow the one before it, or starts a shard.
        jumps = [i == 0 or lane[i] != lane[i - 1] + 1 or lane[i] in shards for i in range(len(lane))]
        assert flags[jumps].all()
        if len(changes) == 1:  # a second change may find lanes that have read nothing: these keep their starts
            assert flags.tolist() == jumps
    assert reader.main.position == StreamPosition(epoch=1, window=0, num_lanes=changes[-1][1])
    assert sorted(np.concatenate(reader.rest_of_epoch()[0]).tolist()) == list(range(length))


def test_a_position_of_other_lanes_is_split_anew_on_construction() -> None:
    reader = Reader(100, 4, 5, [0], seed=0)
    reader.advance()
    read = {at for lane in range(4) for at in range(lane * 25, lane * 25 + 5)}
    other = Reader(100, 3, 5, [0], seed=0, position=reader.main.position)
    assert other.main.position.num_lanes == 3
    assert sorted(np.concatenate(other.rest_of_epoch()[0]).tolist()) == sorted(set(range(100)) - read)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
def test_any_number_of_ranks_reads_the_same_global_order(ranks: int) -> None:
    whole, parts = Reader(1000, 12, 7, [0, 300, 450], seed=5), Reader(1000, 12, 7, [0, 300, 450], seed=5)
    for _ in range(30):
        shares = [parts.window(range(rank * 12 // ranks, (rank + 1) * 12 // ranks)) for rank in range(ranks)]
        for expected, *got in zip(whole.window(), *shares):
            assert (np.concatenate(got) == expected).all()
        whole.advance()
        parts.advance()


def test_a_corpus_shorter_than_one_window_of_all_lanes_is_refused() -> None:
    source = ArraySource(np.zeros(79, np.uint8), np.asarray([0]))
    with pytest.raises(ValueError, match=r"79 bytes to train on, less than one window of 10 bytes for each of 8 lanes"):
        LaneStream(source, 8, 10)
    with pytest.raises(ValueError, match="of 8 lanes"):
        LaneStream(source, 7, 10).set_num_lanes(8)
    LaneStream(ArraySource(np.zeros(80, np.uint8), np.asarray([0])), 8, 10)


def test_an_unknown_reset_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="choose one of shard, sample, never"):
        LaneStream(ArraySource(np.zeros(9, np.uint8), np.asarray([0])), 1, 2, reset="document")


def test_documents_of_a_store_in_their_order(tmp_path: Path) -> None:
    documents = [bytes([65 + i]) * (i + 3) for i in range(9)]
    with TokenStoreWriter(tmp_path / "s") as writer:
        for document in documents:
            writer.add(document)
    store = TokenStore(tmp_path / "s")
    order = [4, 0, 8, 2]
    source = OrderedStore(store, make_order(store, np.asarray(order)))
    expected = b"".join(documents[i] for i in order)
    assert source.num_tokens == len(expected)
    stream, text = LaneStream(source, 2, 4, seed=None), [b"", b""]
    for window in range(stream.num_windows):
        read = stream.read(range(2), window)
        for lane in range(2):
            text[lane] += read.tokens[lane, 1:][read.mask[lane]].tobytes()
    assert b"".join(text) == expected
