"""The store gives back what was written, in Megatron's layout, and a half-built or damaged one never passes for whole."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bigbatch.data import token_store
from bigbatch.data.token_store import HEADER, TokenStore, TokenStoreWriter, store_exists
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

DOCUMENTS = [b"\n one ", b"\n \xff\x00two ", b"", b"\n three and more "]


def build(prefix: Path, documents: list[bytes] = DOCUMENTS, **options: object) -> TokenStore:
    with TokenStoreWriter(prefix, **options) as writer:  # type: ignore[arg-type]
        for document in documents:
            writer.add(document)
    return TokenStore(prefix)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    documents=st.lists(st.binary(max_size=40), min_size=1, max_size=30).filter(any),
    flush=st.integers(1, 60),
    chunk=st.integers(1, 5),
)
def test_round_trip_whatever_the_buffer_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: list[bytes], flush: int, chunk: int
) -> None:
    build(tmp_path / "whole", documents)
    with monkeypatch.context() as patch:
        patch.setattr(token_store, "_FLUSH_BYTES", flush)
        patch.setattr(token_store, "_CHUNK", chunk)
        store = build(tmp_path / "pieces", documents)
    assert [store.document(i).tobytes() for i in range(len(store))] == documents
    assert store.tokens.tobytes() == b"".join(documents) and store.num_tokens == store.offsets[-1]
    for suffix in (".bin", ".idx", ".json"):
        assert (tmp_path / f"pieces{suffix}").read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()


def test_layout_is_megatrons(tmp_path: Path) -> None:
    build(tmp_path / "s")
    raw = (tmp_path / "s.idx").read_bytes()
    sizes = [len(d) for d in DOCUMENTS]
    pointers = [sum(sizes[:i]) for i in range(len(sizes))]
    expected = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", 1) + struct.pack("<QQ", 4, 5)
    expected += struct.pack("<4i", *sizes) + struct.pack("<4q", *pointers) + struct.pack("<5q", 0, 1, 2, 3, 4)
    assert raw == expected
    assert (tmp_path / "s.bin").read_bytes() == b"".join(DOCUMENTS)


def test_other_token_types_and_documents_of_several_sequences(tmp_path: Path) -> None:
    rows = [np.array([1, 65535], np.uint16), np.array([7], np.uint16), np.array([8, 9, 10], np.uint16)]
    with TokenStoreWriter(tmp_path / "s", np.uint16) as writer:
        for row in rows:
            writer.add(row)
        with pytest.raises(ValueError, match="does not fit"):
            writer.add(np.array([1], np.int64))
    store = TokenStore(tmp_path / "s")
    assert [store.document(i).tolist() for i in range(3)] == [row.tolist() for row in rows]
    # Megatron also writes several sequences a document: here the first two are one document.
    raw = bytearray((tmp_path / "s.idx").read_bytes()[:-32])
    raw[26:34] = struct.pack("<Q", 3)
    (tmp_path / "m.idx").write_bytes(bytes(raw) + struct.pack("<3q", 0, 2, 3))
    (tmp_path / "m.bin").write_bytes((tmp_path / "s.bin").read_bytes())
    store = TokenStore(tmp_path / "m")
    assert [store.document(i).tolist() for i in range(2)] == [[1, 65535, 7], [8, 9, 10]]


def test_metadata_and_hashes(tmp_path: Path) -> None:
    store = build(tmp_path / "s", metadata={"cleaning": "x"})
    assert store.metadata["cleaning"] == "x" and store.metadata["num_documents"] == 4
    assert store.metadata["bin_sha256"] == hashlib.sha256(b"".join(DOCUMENTS)).hexdigest()
    other_bounds = build(tmp_path / "t", [b"".join(DOCUMENTS)])
    assert other_bounds.metadata["bin_sha256"] == store.metadata["bin_sha256"]
    assert other_bounds.content_hash != store.content_hash
    (tmp_path / "s.json").unlink()
    bare = TokenStore(tmp_path / "s")
    assert bare.metadata == {} and bare.content_hash == store.content_hash


def test_an_error_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), TokenStoreWriter(tmp_path / "s") as writer:
        writer.add(b"text")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="no documents to store"), TokenStoreWriter(tmp_path / "s"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_error_keeps_the_older_store(tmp_path: Path) -> None:
    build(tmp_path / "s")
    with pytest.raises(RuntimeError), TokenStoreWriter(tmp_path / "s") as writer:
        writer.add(b"new")
        raise RuntimeError
    assert TokenStore(tmp_path / "s").document(0).tobytes() == DOCUMENTS[0]
    assert build(tmp_path / "s", [b"new"]).document(0).tobytes() == b"new"


@pytest.mark.parametrize("stop_at", [".bin", ".json", ".idx"])
def test_a_stop_between_the_renames_never_looks_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: str
) -> None:
    build(tmp_path / "s")
    replace = os.replace

    def stopping(source: Path, target: Path) -> None:
        if str(target).endswith(stop_at):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", stopping)
    with pytest.raises(KeyboardInterrupt), TokenStoreWriter(tmp_path / "s") as writer:
        writer.add(b"new")
    assert not store_exists(tmp_path / "s")
    with pytest.raises(FileNotFoundError, match=r"bigbatch prepare"):
        TokenStore(tmp_path / "s")


BUILD_AND_WAIT = """
import sys, time
from bigbatch.data import token_store
token_store._FLUSH_BYTES = 1
with token_store.TokenStoreWriter(sys.argv[1]) as writer:
    writer.add(b'half' * 100_000)
    print('ready', flush=True)
    time.sleep(60)
"""


def test_a_killed_build_is_not_a_store_and_the_next_one_goes_through(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD_AND_WAIT, str(tmp_path / "s")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        with pytest.raises(ValueError, match="another process is building"), TokenStoreWriter(tmp_path / "s"):
            pass
        assert (tmp_path / "s.bin.partial").stat().st_size >= 390_000
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert not store_exists(tmp_path / "s")
    assert len(build(tmp_path / "s")) == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.bin", "s.idx", "s.json"]


FILL_THE_DISK = """
import resource, sys
from bigbatch.data.token_store import HEADER, TokenStoreWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
try:
    with TokenStoreWriter(sys.argv[1]) as writer:
        for _ in range(100):
            writer.add(b'x' * 100_000)
except OSError as error:
    print(error)
"""


def test_a_full_disk_gives_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILL_THE_DISK, str(tmp_path / "s")], capture_output=True, text=True, check=True
    )
    assert "no room left while writing" in done.stdout and done.stdout.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def corrupt(path: Path, change: str) -> None:
    raw = path.read_bytes()
    path.write_bytes(
        {
            "short": raw[:-3],
            "long": raw + b"x",
            "header": raw[:20],
            "magic": b"SOMETHING ELSE" + raw[14:],
            "version": raw[:9] + struct.pack("<Q", 2) + raw[17:],
            "type": raw[:17] + b"\x07" + raw[18:],
            "none": raw[:18] + struct.pack("<QQ", 0, 1) + raw[34:],
            "bounds": raw[:-8] + struct.pack("<q", 9),
            "json": b"{",
            "count": json.dumps({**json.loads(raw), "num_documents": 9}).encode() if path.suffix == ".json" else b"",
        }[change]
    )


@pytest.mark.parametrize(
    ("suffix", "change", "message"),
    [
        (".bin", "short", "truncated"),
        (".bin", "long", "longer than its index says"),
        (".idx", "short", "truncated"),
        (".idx", "header", "truncated index"),
        (".idx", "magic", "not a token store index"),
        (".idx", "version", "index version 2"),
        (".idx", "type", "token type 7"),
        (".idx", "none", "no documents"),
        (".idx", "bounds", "damaged index"),
        (".json", "json", "damaged sidecar"),
        (".json", "count", "another store"),
    ],
)
def test_damage_is_found_on_opening(tmp_path: Path, suffix: str, change: str, message: str) -> None:
    build(tmp_path / "s")
    path = tmp_path / f"s{suffix}"
    corrupt(path, change)
    with pytest.raises(ValueError, match=message) as error:
        TokenStore(tmp_path / "s")
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("part", ["sizes", "pointers", "boundaries"])
def test_a_flipped_bit_in_the_index_is_found_on_first_use(tmp_path: Path, part: str) -> None:
    store = build(tmp_path / "s")
    n = store.num_documents
    place = HEADER.size + {"sizes": 4, "pointers": 4 * n + 8, "boundaries": 12 * n + 8}[part]  # of the second entry
    path = tmp_path / "s.idx"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"s\.idx: damaged index \(its sizes and pointers contradict one another\)"):
        TokenStore(tmp_path / "s").document(1)


def test_missing_files_and_documents(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"s\.idx"):
        TokenStore(tmp_path / "s")
    store = build(tmp_path / "s")
    for index in (-1, 4):
        with pytest.raises(IndexError):
            store.document(index)
    (tmp_path / "s.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"s\.bin"):
        TokenStore(tmp_path / "s")


def test_tokens_cannot_be_written_through_the_map(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        build(tmp_path / "s").tokens[0] = 1
