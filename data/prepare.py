"""Builds a token store of bytes from text files: sources -> cleaning -> `.bin`/`.idx`, streamed in bounded memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .cleaning import CLEANERS, CLEANING_VERSION, EMPTY
from .config import DataConfig
from .files import SourceReport, expand_paths
from .sources import Row, iter_rows
from .token_store import TokenStore, TokenStoreWriter, store_exists, store_files

logger = logging.getLogger(__name__)

# Rows between two looks at the progress bar.
_STRIDE = 4096


def prepare_store(
    config: DataConfig, prefix: str | os.PathLike[str], progress: bool = True, report: SourceReport | None = None
) -> TokenStore:
    """Reads all files of `config.paths`, cleans each row and stores it as one document of bytes.

    Args:
        config: Files, text column, cleaning, what to do with bad rows.
        prefix: Where the store goes, without extension; one that is there is replaced at the end.
        progress: Show a bar over the bytes on disk.
        report: Filled with what was read; a caller that passes one reports it, otherwise it is logged.

    Raises:
        FileNotFoundError, ValueError: bad input, in one line (see `sources.iter_rows`), or a store that would overwrite one
            of its own sources; no store is left behind.
        OSError: the disk is full.
    """
    log_it, report = report is None, report if report is not None else SourceReport()
    files = expand_paths(config.paths)
    for target in store_files(prefix):
        if target.exists() and any(target.samefile(source) for source in files):
            raise ValueError(
                f"the token store {prefix} would overwrite {target}, one of its sources: choose another name for it"
            )
    total = sum(path.stat().st_size for path in files)
    rows = iter_rows(files, config.text_key, on_bad_row=config.on_bad_row, report=report, labels=False)
    with (
        TokenStoreWriter(prefix) as writer,
        tqdm(total=total, unit="B", unit_scale=True, desc="prepare", disable=not progress) as bar,
    ):
        _write_rows(rows, writer, config, report, bar)
        writer.metadata.update(_metadata(config, report))
    if log_it:
        for message in report.messages:
            logger.info("%s", message.replace("--text-key", "--data.text-key"))  # as `bigbatch train` calls it
        logger.info("prepared %s: %s", prefix, report.summary())
    return TokenStore(prefix)


def _write_rows(
    rows: Iterable[Row], writer: TokenStoreWriter, config: DataConfig, report: SourceReport, bar: tqdm[Any]
) -> None:
    clean, empty, add = CLEANERS[config.cleaning], EMPTY[config.cleaning], writer.add
    countdown = _STRIDE
    for text, _, path, number in rows:
        document = clean(text)
        if document == empty:
            # Not blank as found, but nothing is left of it, such as "&nbsp;".
            if config.on_bad_row == "error":
                raise ValueError(f"{path}:{number}: no text is left after cleaning: mend it or use on_bad_row=skip")
            report.rows -= 1
            report.rows_without_text += 1
            continue
        add(document)
        countdown -= 1
        if not countdown:
            countdown = _STRIDE
            bar.update(report.source_bytes - bar.n)
    bar.update(report.source_bytes - bar.n)


def _metadata(config: DataConfig, report: SourceReport) -> dict[str, Any]:
    return {
        "cleaning": {"name": config.cleaning, "version": CLEANING_VERSION},
        "text_key": config.text_key,
        "sources": [
            {"path": str(path), "bytes": size, "text_key": report.columns[str(path)][0]} for path, size in report.files
        ],
        "rows": report.rows,
        "rows_without_text": report.rows_without_text,
        "undecodable_bytes": report.undecodable_bytes,
    }


def open_or_prepare(
    config: DataConfig, prefix: str | os.PathLike[str], progress: bool = True, rebuild: bool = True
) -> TokenStore:
    """Opens the store at `prefix` if it was built from these files in this way, else builds it.

    Files are the same if names (without folders), order and sizes are. Where no input is named, or it is gone but a
    store is there, the store is used (and in the second case the log says so).

    Args:
        config: Files, text column, cleaning.
        prefix: Of the store.
        progress: Show a bar.
        rebuild: Build a store of other input anew; without, it is an error and stays as it is.

    Raises:
        ValueError: bad input, or a store of other input that must not be rebuilt.
    """
    if not store_exists(prefix):
        return prepare_store(config, prefix, progress)
    store = TokenStore(prefix)
    if not config.paths:
        return store
    try:
        files = expand_paths(config.paths)
    except FileNotFoundError as error:
        logger.warning("%s; using the token store %s as it is", error, prefix)
        return store
    difference = _difference(store.metadata, config, files)
    if difference is None:
        return store
    if not rebuild:
        raise ValueError(
            f"the token store {prefix} was built {difference} than --data.paths and --data.cleaning say now, and is not rebuilt "
            "because runs may depend on it: choose another --run-dir or --data.store, or restore the files"
        )
    logger.warning("the token store %s was built %s: building it again", prefix, difference)
    return prepare_store(config, prefix, progress)


def _difference(metadata: dict[str, Any], config: DataConfig, files: list[Path]) -> str | None:
    if not metadata:
        return "by another program, from another input"
    stored = [(Path(source["path"]).name, source["bytes"]) for source in metadata.get("sources", [])]
    if stored != [(path.name, path.stat().st_size) for path in files]:
        return "from other files"
    if metadata.get("cleaning") != {"name": config.cleaning, "version": CLEANING_VERSION}:
        return "with another cleaning"
    if config.text_key not in (None, metadata.get("text_key")) and any(
        source["text_key"] != config.text_key for source in metadata["sources"]
    ):
        return "from another column"
    return None
