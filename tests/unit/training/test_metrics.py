"""metrics.jsonl and result.json: valid JSON at any moment, cut back on resume."""

from __future__ import annotations

import errno
import io
import json
import math
import os
from pathlib import Path

import pytest
from bigbatch.training.metrics import (
    MetricsWriter,
    RunningMeans,
    read_metrics,
    read_result,
    update_result,
)


def test_rows_are_lines_of_json_with_null_for_what_json_lacks(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    writer.write({"samples": 1, "loss": math.nan, "grad_norm": math.inf, "lr": 0.5})
    writer.write({"samples": 2})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    rows = [json.loads(line, parse_constant=refuse) for line in lines]
    assert rows == [{"samples": 1, "loss": None, "grad_norm": None, "lr": 0.5}, {"samples": 2}]
    assert writer.size_bytes == (tmp_path / "metrics.jsonl").stat().st_size
    writer.close()


def test_the_file_is_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.write({"samples": 1})
    size = writer.size_bytes
    writer.write({"samples": 2})
    writer.close()
    with path.open("ab") as file:
        file.write(b'{"samples": 3, "lo')  # a kill in the middle of a row
    resumed = MetricsWriter(path, size)
    resumed.write({"samples": 2, "again": True})
    resumed.close()
    assert read_metrics(tmp_path) == [{"samples": 1}, {"samples": 2, "again": True}]
    MetricsWriter(path).close()  # a run that starts anew starts an empty file
    assert read_metrics(tmp_path) == []


def test_a_half_row_at_the_end_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"a": 1}\n{"a": ')
    assert read_metrics(tmp_path) == [{"a": 1}]
    with pytest.raises(FileNotFoundError, match=r"is .* a run folder"):
        read_metrics(tmp_path / "other")


class FullDisk(io.BytesIO):
    """A raw file on a disk that takes half of what is written, or nothing."""

    def __init__(self, takes_half: bool) -> None:
        super().__init__()
        self._takes_half = takes_half

    def write(self, data) -> int:
        if self._takes_half:
            return len(data) // 2
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("takes_half", [True, False])
def test_a_full_disk_is_one_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_half: bool
) -> None:
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    monkeypatch.setattr(writer, "_file", FullDisk(takes_half))
    with pytest.raises(OSError, match=r"^cannot write .*metrics.jsonl: .*No space left.*; free some space[^\n]+$"):
        writer.write({"samples": 1})
    writer.close()


def test_running_means_weigh_by_targets_and_survive_json() -> None:
    means = RunningMeans()
    means.add(loss_sum=30.0, num_targets=10, num_tokens=40, grad_norm=1.0, seconds=0.5)
    means = RunningMeans(json.loads(json.dumps(means.state(), allow_nan=False)))
    means.add(loss_sum=10.0, num_targets=30, num_tokens=60, grad_norm=math.inf, seconds=1.5)  # a skipped step
    means.add(loss_sum=0.0, num_targets=0, num_tokens=0, grad_norm=2.0, seconds=0.0)
    json.dumps(means.state(), allow_nan=False)
    assert means.row() == {"loss": 1.0, "grad_norm": 1.5, "tokens_per_second": 50.0}
    assert math.isnan(RunningMeans().row()["grad_norm"])


def test_results_are_added_to_what_is_there(tmp_path: Path) -> None:
    assert read_result(tmp_path) == {}
    update_result(tmp_path, {"a": 1, "b": 2})
    assert update_result(tmp_path, {"b": 3}) == {"a": 1, "b": 3} == read_result(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("content", ["garbage", "3"])
def test_a_damaged_result_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(ValueError, match=r"result\.json is damaged .* move it away"):
        read_result(tmp_path)
