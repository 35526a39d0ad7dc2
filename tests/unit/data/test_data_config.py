"""Impossible choices are refused when the configuration is made, with the name of the option."""

from __future__ import annotations

import pytest
from bigbatch.data.config import DataConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("paths", []),
        ("paths", "file.csv"),
        ("cleaning", "strip"),
        ("on_bad_row", "ignore"),
        ("reset", "always"),
        ("val_fraction", 0.5),
        ("test_fraction", -0.1),
        ("min_heldout_bytes", 0),
        ("num_shards", 0),
        ("seed", -1),
    ],
)
def test_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"data\.{field} is ") as error:
        DataConfig(**{field: value})
    assert "\n" not in str(error.value)


def test_defaults_are_those_of_the_paper_and_a_store_needs_no_files() -> None:
    config = DataConfig()
    assert (config.num_shards, config.reset, config.cleaning) == (1000, "shard", "reviews")
    assert DataConfig(paths=[], store="stores/reviews").paths == []
