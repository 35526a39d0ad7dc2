"""Documents as one flat file of tokens and an index: Megatron's `.bin` / `.idx` pair, with a JSON sidecar.

Layout of `<prefix>.idx`, little endian: magic `MMIDIDX\\0\\0`, version u64 = 1, type code u8, number of sequences u64,
number of document boundaries u64, then int32 sizes in tokens, int64 pointers in bytes into `<prefix>.bin`, and int64
document boundaries counted in sequences (the first is 0). We write one sequence per document. `<prefix>.json` holds
what Megatron has no place for: hashes, sources, cleaning.

Writing is atomic: everything goes to `.partial` files that are renamed at the end, the index last, so a store without
`.idx` is not finished. Memory does not grow with the number of documents. What becomes a document is `prepare.py`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import struct
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPE_CODES = {1: np.dtype("u1"), 4: np.dtype("<i4"), 8: np.dtype("<u2")}
STORE_FORMAT = 1
SUFFIXES = (".bin", ".json", ".idx")  # in the order in which a finished build is put in place

_FLUSH_BYTES = 1 << 18
_CHUNK = 1 << 16


class TokenStoreWriter:
    """Builds a store; use as a context manager. Nothing appears under the final names before the block ends well.

    Args:
        prefix: Path without extension; its folder is created.
        dtype: Type of a token: uint8, uint16 or int32.
        metadata: Extra keys for the sidecar; may still be changed until the block ends.

    Raises:
        ValueError: another process builds at this prefix, an unsupported dtype, or (at the end) no documents.
        OSError: the disk is full or not writable; the partial files are removed.
    """

    def __init__(
        self, prefix: str | os.PathLike[str], dtype: DTypeLike = np.uint8, metadata: dict[str, Any] | None = None
    ) -> None:
        self.prefix = Path(prefix)
        self.dtype = np.dtype(dtype)
        if self.dtype not in DTYPE_CODES.values():
            raise ValueError(f"a token store holds uint8, uint16 or int32 tokens, not {self.dtype}")
        self.metadata = metadata if metadata is not None else {}
        self.num_documents = 0
        self.num_tokens = 0
        self._finished = False
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._hash, self._sizes_hash = hashlib.sha256(), hashlib.sha256()

    def __enter__(self) -> TokenStoreWriter:
        with _clear_disk_errors(self.prefix):
            self._new_folder = not self.prefix.parent.exists()
            self.prefix.parent.mkdir(parents=True, exist_ok=True)
            self._bin = self._open_partial(".bin")
            try:
                # Released by the kernel when the process ends, however it ends.
                fcntl.flock(self._bin, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(self._partial(".bin").stat(), os.fstat(self._bin.fileno())):
                    raise FileNotFoundError
            except (BlockingIOError, FileNotFoundError):
                # Locked, or finished and renamed since it was opened.
                self._bin.close()
                raise ValueError(f"{self.prefix}: another process is building this token store") from None
            self._bin.truncate()
            self._sizes = self._open_partial(".sizes")
            self._sizes.truncate()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                with _clear_disk_errors(self.prefix):
                    self._finish()
        finally:
            # While the lock is held: afterwards the names may be another process's.
            if not self._finished:
                for suffix in (*SUFFIXES, ".sizes"):
                    self._partial(suffix).unlink(missing_ok=True)
                if self._new_folder:
                    with contextlib.suppress(OSError):
                        self.prefix.parent.rmdir()
            for file in (self._sizes, self._bin):
                # With a full disk even closing may fail, since it flushes.
                with contextlib.suppress(OSError):
                    file.close()

    def add(self, document: bytes | np.ndarray) -> None:
        """Appends one document: raw bytes of the tokens, or an array of the store's dtype."""
        if not isinstance(document, bytes):
            if document.dtype != self.dtype:
                raise ValueError(f"a document of {document.dtype} does not fit a store of {self.dtype}")
            document = document.tobytes()
        self._pending.append(document)
        self._pending_bytes += len(document)
        if self._pending_bytes >= _FLUSH_BYTES or len(self._pending) >= _CHUNK:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        with _clear_disk_errors(self.prefix):
            sizes = np.fromiter(map(len, self._pending), np.int64, len(self._pending)) // self.dtype.itemsize
            if sizes.max() > np.iinfo(np.int32).max:
                raise ValueError(
                    f"{self.prefix}: a document of {sizes.max():,} tokens; the layout allows 2,147,483,647"
                )
            blob, raw_sizes = b"".join(self._pending), sizes.astype("<i4").tobytes()
            self._bin.write(blob)
            self._sizes.write(raw_sizes)
        self._hash.update(blob)
        self._sizes_hash.update(raw_sizes)
        self.num_documents += len(sizes)
        self.num_tokens += int(sizes.sum())
        self._pending.clear()
        self._pending_bytes = 0

    def _finish(self) -> None:
        self._flush()
        if not self.num_documents:
            raise ValueError(f"{self.prefix}: no documents to store")
        _sync(self._bin)
        with self._open_partial(".idx") as index:
            self._write_index(index)
            _sync(index)
        with self._open_partial(".json") as sidecar:
            sidecar.write(json.dumps(self._sidecar(), indent=2, ensure_ascii=True).encode() + b"\n")
            _sync(sidecar)
        self._partial(".sizes").unlink()
        # An older store loses its index first: at no moment does an index stand beside another build's tokens.
        self._final(".idx").unlink(missing_ok=True)
        for suffix in SUFFIXES:
            os.replace(self._partial(suffix), self._final(suffix))
        self._finished = True
        folder = os.open(self.prefix.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def _write_index(self, index: BinaryIO) -> None:
        index.truncate()
        code = next(code for code, dtype in DTYPE_CODES.items() if dtype == self.dtype)
        index.write(HEADER.pack(MAGIC, VERSION, code, self.num_documents, self.num_documents + 1))
        for sizes in self._written_sizes():
            index.write(sizes.tobytes())
        position = 0
        for sizes in self._written_sizes():
            ends = position + np.cumsum(sizes, dtype="<i8") * self.dtype.itemsize
            index.write(np.concatenate(([position], ends[:-1])).astype("<i8").tobytes())
            position = int(ends[-1])
        for start in range(0, self.num_documents + 1, _CHUNK):
            index.write(np.arange(start, min(start + _CHUNK, self.num_documents + 1), dtype="<i8").tobytes())

    def _written_sizes(self) -> Iterator[np.ndarray]:
        self._sizes.seek(0)
        while raw := self._sizes.read(4 * _CHUNK):
            yield np.frombuffer(raw, "<i4")

    def _sidecar(self) -> dict[str, Any]:
        bin_hash, sizes_hash = self._hash.hexdigest(), self._sizes_hash.hexdigest()
        return {
            "format": STORE_FORMAT,
            "num_documents": self.num_documents,
            "num_tokens": self.num_tokens,
            "dtype": self.dtype.name,
            "bin_sha256": bin_hash,
            "content_hash": _combine(bin_hash, sizes_hash, self.dtype),
            **self.metadata,
        }

    def _final(self, suffix: str) -> Path:
        return self.prefix.with_name(self.prefix.name + suffix)

    def _partial(self, suffix: str) -> Path:
        return self._final(suffix + ".partial")

    def _open_partial(self, suffix: str) -> BinaryIO:
        # Not truncated on opening: the file may still be another process's, which only the lock can tell.
        return os.fdopen(os.open(self._partial(suffix), os.O_RDWR | os.O_CREAT, 0o666), "r+b")


class TokenStore:
    """A finished store, mapped into memory; opening checks the files against each other.

    Attributes:
        tokens: all tokens, (num_tokens,), read-only map of `.bin`.
        dtype: type of a token.
        num_documents: number of documents.
        num_tokens: number of tokens.
        metadata: the sidecar; empty for a store that another program wrote.

    Raises:
        FileNotFoundError: `.idx` or `.bin` is missing.
        ValueError: a file is truncated, damaged, or does not belong to the others.
    """

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        self.prefix = Path(prefix)
        index_path, bin_path, json_path = (Path(f"{self.prefix}{s}") for s in (".idx", ".bin", ".json"))
        for path in (index_path, bin_path):
            if not path.is_file():
                raise FileNotFoundError(f"{path}: no such file; build the token store with `bigbatch prepare`")
        self.dtype, num_sequences, num_boundaries = _read_header(index_path)
        at_pointers = HEADER.size + 4 * num_sequences
        at_boundaries = at_pointers + 8 * num_sequences
        _check_size(index_path, at_boundaries + 8 * num_boundaries)
        raw = np.memmap(index_path, np.uint8, mode="r").view(np.ndarray)
        self._sizes = raw[HEADER.size : at_pointers].view("<i4")
        self._pointers = raw[at_pointers:at_boundaries].view("<i8")
        self._boundaries = raw[at_boundaries:].view("<i8")
        if int(self._boundaries[0]) != 0 or int(self._boundaries[-1]) != num_sequences or int(self._pointers[0]) != 0:
            raise ValueError(
                f"{index_path}: damaged index (its document boundaries make no sense): prepare the store again"
            )
        num_bytes = int(self._pointers[-1]) + int(self._sizes[-1]) * self.dtype.itemsize
        _check_size(bin_path, num_bytes)
        self.num_documents = num_boundaries - 1
        self.num_tokens = num_bytes // self.dtype.itemsize
        if not self.num_tokens:
            raise ValueError(f"{bin_path}: the store holds no tokens")
        # A plain array over the map: slices of np.memmap itself cost several times as much.
        self.tokens: np.ndarray = np.memmap(bin_path, self.dtype, mode="r").view(np.ndarray)
        self.metadata = _read_sidecar(json_path, self.num_documents, self.num_tokens)

    def __len__(self) -> int:
        return self.num_documents

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where each document starts in `tokens`, and after the last one the end: int64 (num_documents + 1,).

        Raises:
            ValueError: sizes, pointers and boundaries of the index contradict one another.
        """
        starts = np.append(self._pointers // self.dtype.itemsize, self.num_tokens)
        bounds = self._boundaries
        least = 1 if self.metadata else 0  # in a store of ours every document is one sequence
        if np.any(np.diff(bounds) < least) or np.any(np.diff(starts) != self._sizes):
            raise ValueError(
                f"{self.prefix}.idx: damaged index (its sizes and pointers contradict one another): prepare the store again"
            )
        return starts[bounds]

    def document(self, index: int) -> np.ndarray:
        """Tokens of one document; a view of `tokens`."""
        if not 0 <= index < self.num_documents:
            raise IndexError(f"document {index} of {self.num_documents}")
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    @cached_property
    def content_hash(self) -> str:
        """Hash of tokens and document bounds: from the sidecar, or computed where there is none."""
        if "content_hash" in self.metadata:
            return str(self.metadata["content_hash"])
        hashes = [hashlib.sha256(), hashlib.sha256()]
        for digest, array in zip(hashes, (self.tokens, np.diff(self.offsets).astype("<i4"))):
            for start in range(0, len(array), _FLUSH_BYTES):
                digest.update(array[start : start + _FLUSH_BYTES].tobytes())
        return _combine(hashes[0].hexdigest(), hashes[1].hexdigest(), self.dtype)


def store_files(prefix: str | os.PathLike[str]) -> list[Path]:
    """The three files of a store, there or not."""
    return [Path(f"{os.fspath(prefix)}{suffix}") for suffix in SUFFIXES]


def store_exists(prefix: str | os.PathLike[str]) -> bool:
    """Whether a finished store stands at this prefix."""
    return Path(f"{os.fspath(prefix)}.idx").is_file()


def _combine(bin_hash: str, sizes_hash: str, dtype: np.dtype) -> str:
    return hashlib.sha256(f"{bin_hash} {sizes_hash} {dtype.name}".encode()).hexdigest()


def _read_header(path: Path) -> tuple[np.dtype, int, int]:
    with path.open("rb") as file:
        raw = file.read(HEADER.size)
    if not raw.startswith(MAGIC):
        raise ValueError(f"{path}: not a token store index (it does not begin with MMIDIDX)")
    if len(raw) < HEADER.size:
        raise ValueError(f"{path}: truncated index: prepare the store again")
    _, version, code, num_sequences, num_boundaries = HEADER.unpack(raw)
    if version != VERSION:
        raise ValueError(f"{path}: index version {version}; this program reads version {VERSION}")
    if code not in DTYPE_CODES:
        raise ValueError(f"{path}: token type {code}; supported are uint8 (1), int32 (4) and uint16 (8)")
    if num_sequences < 1 or num_boundaries < 2:
        raise ValueError(f"{path}: the store holds no documents")
    return DTYPE_CODES[code], num_sequences, num_boundaries


def _check_size(path: Path, expected: int) -> None:
    size = path.stat().st_size
    if size != expected:
        what = "truncated" if size < expected else "longer than its index says"
        raise ValueError(f"{path}: {what} ({size:,} bytes, expected {expected:,}): prepare the store again")


def _read_sidecar(path: Path, num_documents: int, num_tokens: int) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
        counts = metadata["num_documents"], metadata["num_tokens"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path}: damaged sidecar: prepare the store again") from None
    if counts != (num_documents, num_tokens):
        raise ValueError(
            f"{path}: belongs to another store ({counts[0]} documents, not {num_documents}): prepare it again"
        )
    return metadata


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def _clear_disk_errors(prefix: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            message = f"no room left while writing {prefix}.bin: free some or write to another disk; nothing was kept"
            raise OSError(error.errno, message) from None
        raise
