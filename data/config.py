"""What text to read and how to cut it up: the `data` part of a training configuration, free of torch.

It holds choices only. Reading is `sources.py`, the token store `prepare.py`, the split `splits.py`, the lanes
`streams.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

CLEANINGS = ("reviews", "none")
BAD_ROW_POLICIES = ("skip", "error")
RESETS = ("shard", "sample", "never")


@dataclass
class DataConfig:
    """Input files, cleaning, split and reset rule of one run.

    Attributes:
        paths: Files, glob patterns or folders; the single word `demo` stands for the embedded corpus.
        text_key: Column of the text; None guesses it and says which was taken.
        cleaning: `reviews` is the published featurisation (see `cleaning.py`), `none` keeps the text as it is.
        on_bad_row: `skip` counts rows without text and goes on, `error` stops at the first.
        store: Prefix of the token store (`<prefix>.bin`, `.idx`, `.json`); None lets the run choose.
        val_fraction: Part of all bytes held out for validation, at least `min_heldout_bytes` and one shard.
        test_fraction: The same for the test part.
        min_heldout_bytes: Least size of the validation and of the test part, in bytes.
        num_shards: Most shards the whole corpus is cut into; shards are never cut below 100 kB to reach it.
        keep_duplicates_together: Near-duplicate documents stay on one side of the split (see `splits.py`).
        reset: Where the recurrent state is zeroed: at `shard` starts, at every `sample` (window), or `never`.
        seed: Seed of the order of the documents.
    """

    paths: list[str] = field(default_factory=lambda: ["demo"])
    text_key: str | None = None
    cleaning: Literal["reviews", "none"] = "reviews"
    on_bad_row: Literal["skip", "error"] = "skip"
    store: str | None = None
    val_fraction: float = 0.01
    test_fraction: float = 0.01
    min_heldout_bytes: int = 500_000
    num_shards: int = 1000
    keep_duplicates_together: bool = True
    reset: Literal["shard", "sample", "never"] = "shard"
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.paths, str):
            raise ValueError(f"data.paths is a list of files, got the string {self.paths!r}: write [{self.paths}]")
        if not self.paths and self.store is None:
            raise ValueError("data.paths is empty: name at least one file, folder or glob, or `demo`")
        for name, value, known in (
            ("cleaning", self.cleaning, CLEANINGS),
            ("on_bad_row", self.on_bad_row, BAD_ROW_POLICIES),
            ("reset", self.reset, RESETS),
        ):
            if value not in known:
                raise ValueError(f"data.{name} is {value!r}; it is one of {', '.join(known)}")
        for name in ("val_fraction", "test_fraction"):
            if not 0 <= getattr(self, name) < 0.5:
                raise ValueError(f"data.{name} is {getattr(self, name)}; it must be at least 0 and below 0.5")
        if self.min_heldout_bytes < 1:
            raise ValueError(f"data.min_heldout_bytes is {self.min_heldout_bytes}; it must be at least 1")
        if self.num_shards < 1:
            raise ValueError(f"data.num_shards is {self.num_shards}; it must be at least 1")
        if self.seed < 0:
            raise ValueError(f"data.seed is {self.seed}; it must not be negative")
