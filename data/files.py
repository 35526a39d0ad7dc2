"""From names on the command line to blocks of decoded text: globs, folders, compression, UTF-8.

Everything streams: at most one block (64 KiB) and one unfinished line are held. What the text means, columns and rows,
is `sources.py`.
"""

from __future__ import annotations

import codecs
import glob
import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

BLOCK_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 26
FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".txt": "txt",
}
COMPRESSIONS = (".gz", ".zst")

_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
_SIGNATURES = {
    b"\x1f\x8b": "gzip data: name it ….gz",
    b"\x28\xb5\x2f\xfd": "zstandard data: name it ….zst",
    b"PAR1": "a parquet file: name it ….parquet",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"\xff\xfe": "UTF-16 text: convert it with `iconv -f UTF-16 -t UTF-8`",
    b"\xfe\xff": "UTF-16 text: convert it with `iconv -f UTF-16 -t UTF-8`",
}


@dataclass
class SourceReport:
    """What reading has found so far; filled while the rows stream by.

    Attributes:
        files: The files in reading order, with their size on disk in bytes.
        rows: Rows with text.
        rows_without_text: Rows skipped because the text was missing, null, empty or white space.
        undecodable_bytes: Bytes that are not valid UTF-8; they were kept.
        source_bytes: Bytes read from disk (compressed, where a file is).
        text_bytes: Bytes after decompression; for parquet the bytes on disk.
        columns: Text and label column (or columns) taken from each file.
        messages: Lines for the user, such as which column was guessed.
    """

    files: list[tuple[Path, int]] = field(default_factory=list)
    rows: int = 0
    rows_without_text: int = 0
    undecodable_bytes: int = 0
    source_bytes: int = 0
    text_bytes: int = 0
    columns: dict[str, tuple[str | None, str | tuple[str, ...] | None]] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """One line: files, rows, bytes and all that was odd."""
        parts = [f"{len(self.files):,} file(s)", f"{self.rows:,} rows", f"{self.text_bytes:,} bytes"]
        if self.rows_without_text:
            parts.append(f"{self.rows_without_text:,} rows without text skipped")
        if self.undecodable_bytes:
            parts.append(f"{self.undecodable_bytes:,} bytes that are not UTF-8 kept as they are")
        return ", ".join(parts)


def file_format(path: Path) -> str:
    """Format of a file by its name: csv, tsv, json, jsonl, parquet or txt.

    Raises:
        ValueError: the extension is none of those.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    found = FORMATS.get(suffixes[-1]) if suffixes else None
    if found is None:
        known = ", ".join(FORMATS)
        raise ValueError(f"{path}: unknown file type; names end in {known}, with .gz or .zst after it if packed")
    if found == "parquet" and path.suffix.lower() != ".parquet":
        raise ValueError(f"{path}: parquet is compressed inside: unpack the {path.suffix} around it first")
    return found


def expand_paths(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Files behind names, glob patterns and folders, each once.

    The order is that of the arguments; a pattern or folder gives its files sorted by name. A folder is searched with
    its subfolders for files of a known type; left out are hidden ones, run folders of ours, and the sidecars of token
    stores. A file named directly or by a pattern must have a known type.

    Raises:
        FileNotFoundError: a name or pattern that matches nothing.
        ValueError: a file of unknown type, a folder without data, or no names at all.
    """
    found: dict[Path, None] = {}
    for name in paths:
        path = Path(name).expanduser()
        if path.is_dir():
            members = [
                p
                for p in sorted(path.rglob("*"))
                if p.is_file() and _is_data(p.relative_to(path)) and not _is_ours(p, path)
            ]
            if not members:
                raise ValueError(f"{path}: no data files in this folder; looked for {', '.join(FORMATS)}")
        elif path.exists():
            members = [path]
        elif glob.has_magic(str(path)):
            members = [Path(p) for p in sorted(glob.glob(str(path), recursive=True)) if Path(p).is_file()]
            if not members:
                raise FileNotFoundError(f"{path}: no file matches this pattern")
        else:
            raise FileNotFoundError(f"{path}: no such file or folder")
        for member in members:
            file_format(member)
            found[member] = None
    if not found:
        raise ValueError("no input: name at least one file, folder or glob")
    return list(found)


def _is_data(relative: Path) -> bool:
    if any(part.startswith(".") for part in relative.parts):
        return False
    try:
        return bool(file_format(relative))
    except ValueError:
        return False


def _is_ours(file: Path, root: Path) -> bool:
    """Whether a file found under `root` is the output of a run or of `prepare`: what we wrote is not read back as text."""
    if file.suffix == ".json" and file.with_suffix(".idx").is_file() and file.with_suffix(".bin").is_file():
        return True
    folders = [folder for folder in file.parents if folder.is_relative_to(root)]
    return any((folder / "config.yaml").is_file() and (folder / ".lock").is_file() for folder in folders)


def byte_blocks(path: Path, report: SourceReport) -> Iterator[bytes]:
    """Decompressed blocks of a file, about 64 KiB each, without a leading byte order mark.

    Raises:
        ValueError: an empty file, a truncated or damaged archive, or content that contradicts the name.
    """
    with path.open("rb") as raw:
        base, position, first = report.source_bytes, 0, True
        for block in _decompressed(path, raw):
            position = raw.tell()
            report.source_bytes = base + position
            report.text_bytes += len(block)
            if first:
                first = False
                for signature, meaning in _SIGNATURES.items():
                    if block.startswith(signature):
                        raise ValueError(f"{path}: the content is {meaning}")
                block = block.removeprefix(codecs.BOM_UTF8)
            yield block
        if first:
            raise ValueError(f"{path}: the file is empty")


def _decompressed(path: Path, raw: BinaryIO) -> Iterator[bytes]:
    kind = path.suffix.lower()
    try:
        if kind == ".zst":
            yield from _zstd_blocks(path, raw)
            return
        stream = gzip.GzipFile(fileobj=raw) if kind == ".gz" else raw
        while block := stream.read(BLOCK_BYTES):
            yield block
    except EOFError:
        raise ValueError(f"{path}: the gzip data end early (a broken download?): fetch the file again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: damaged or not gzip data ({error}): fetch or name it again") from None


def _zstd_blocks(path: Path, raw: BinaryIO) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        raise ValueError(f"{path}: reading .zst needs one more package: pip install 'bigbatch[zstd]'") from None
    # Small pieces in, so that what comes out of one stays in the order of a block.
    unpack = zstandard.ZstdDecompressor().decompressobj()
    complete = True
    try:
        while piece := raw.read(max(1, BLOCK_BYTES // 4)):
            while piece:
                block = unpack.decompress(piece)
                complete = unpack.eof
                piece = unpack.unused_data if complete else b""
                if complete:
                    unpack = zstandard.ZstdDecompressor().decompressobj()
                if block:
                    yield block
    except zstandard.ZstdError as error:
        raise ValueError(f"{path}: damaged or not zstandard data ({error}): fetch or name it again") from None
    if not complete:
        raise ValueError(f"{path}: the zstandard data end early (a broken download?): fetch the file again")


def line_blocks(path: Path, report: SourceReport) -> Iterator[list[str]]:
    """Lists of whole lines without their "\\n". Only "\\n" ends a line: U+0085 and U+2028 are ordinary characters.

    Bytes that are not UTF-8 are kept as surrogate escapes and counted in the report.

    Raises:
        ValueError: a line of more than 64 MiB, or any error of `byte_blocks`.
    """
    pending: list[bytes] = []
    pending_bytes = 0
    for block in byte_blocks(path, report):
        cut = block.rfind(b"\n") + 1
        if cut:
            pending.append(block[: cut - 1])
            yield _decode(b"".join(pending), report).split("\n")
            pending, pending_bytes = [], 0
        pending.append(block[cut:])
        pending_bytes += len(block) - cut
        if pending_bytes > MAX_LINE_BYTES:
            raise ValueError(f"{path}: a line of more than {MAX_LINE_BYTES:,} bytes: is this text in lines?")
    rest = b"".join(pending)
    if rest:
        yield _decode(rest, report).split("\n")


def _decode(data: bytes, report: SourceReport) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        text = data.decode(errors="surrogateescape")
        report.undecodable_bytes += sum(1 for _ in _ESCAPED_BYTE.finditer(text))
        return text


def char_blocks(path: Path, report: SourceReport) -> Iterator[str]:
    """Decoded text in blocks cut anywhere, for formats that are not made of lines."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    for block in byte_blocks(path, report):
        text = decoder.decode(block)
        report.undecodable_bytes += sum(1 for _ in _ESCAPED_BYTE.finditer(text)) if not text.isascii() else 0
        yield text
    rest = decoder.decode(b"", final=True)
    report.undecodable_bytes += len(rest)
    if rest:
        yield rest
