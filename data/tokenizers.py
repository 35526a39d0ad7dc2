"""Tokenizers: bytes, and byte-level BPE (GPT-2), WordPiece (BERT) and unigram through Hugging Face's `tokenizers`.

All speak the same interface. The byte tokenizer needs no package; the others `pip install 'bigbatch[transformers]'`.
Files pass as bytes, so that `models/interchange` can write them beside weights. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

Kind = Literal["bpe", "wordpiece", "unigram"]
END_OF_TEXT = "<|endoftext|>"
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
JSON_FILE = "tokenizer.json"
_BPE_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))  # as Hugging Face and as OpenAI name them
_WORDPIECE_FILE = "vocab.txt"


class Tokenizer(Protocol):
    """Text to token ids and back.

    Attributes:
        vocab_size: ids are below it.
        hash: of everything that decides an encoding, for the metadata of stores and checkpoints.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def hash(self) -> str: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def files(self) -> dict[str, bytes]: ...


class ByteTokenizer:
    """A token is a byte of UTF-8; undecodable bytes travel as surrogate escapes."""

    vocab_size = 256
    hash = hashlib.sha256(b"bytes").hexdigest()

    def encode(self, text: str) -> list[int]:
        """The bytes of a text."""
        return list(text.encode("utf-8", "surrogateescape"))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of bytes."""
        return bytes(ids).decode("utf-8", "surrogateescape")

    def files(self) -> dict[str, bytes]:
        """None: there is nothing to keep."""
        return {}


class SubwordTokenizer:
    """A tokenizer of the package `tokenizers`, without special tokens added to what it encodes.

    Args:
        inner: a `tokenizers.Tokenizer`.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return self.inner.get_vocab_size(with_added_tokens=True)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the tokenizer's JSON, its keys sorted."""
        # Six digits of a unigram's scores: the package does not read back the last one it wrote.
        parsed = json.loads(self.inner.to_str(), parse_float=lambda number: f"{float(number):.6g}")
        content = json.dumps(parsed, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        return self.inner.encode(_clean(text), add_special_tokens=False).ids

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """Token ids of several texts, on several cores."""
        found = self.inner.encode_batch([_clean(text) for text in texts], add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; special tokens appear in it."""
        return self.inner.decode(list(ids), skip_special_tokens=False)

    def files(self) -> dict[str, bytes]:
        """tokenizer.json, which both this module and `transformers` open."""
        return {JSON_FILE: self.inner.to_str(pretty=True).encode()}

    def id_of(self, token: str) -> int:
        """Id of a token such as [CLS].

        Raises:
            ValueError: the vocabulary has no such token.
        """
        number = self.inner.token_to_id(token)
        if number is None:
            raise ValueError(f"the vocabulary of {self.vocab_size:,} tokens has no {token!r}")
        return number

    def continues(self) -> np.ndarray:
        """Bool (vocab_size,): tokens that go on with the word before them, for masking whole words.

        WordPiece marks them with `##`; BPE and unigram mark the tokens that begin a word, with the sign of a space.
        """
        found = np.zeros(self.vocab_size, bool)
        wordpiece = json.loads(self.inner.to_str())["model"]["type"] == "WordPiece"
        special = {added.content for added in self.inner.get_added_tokens_decoder().values()}
        for token, number in self.inner.get_vocab(with_added_tokens=True).items():
            goes_on = token.startswith("##") if wordpiece else not token.startswith(("Ġ", "▁"))
            found[number] = goes_on and token not in special
        return found


def load_tokenizer(name: str | os.PathLike[str]) -> ByteTokenizer | SubwordTokenizer:
    """Opens a tokenizer.

    Args:
        name: the word `bytes`; a tokenizer.json; a BERT vocabulary (vocab.txt, a token a line, lower-cased unless it knows
            capitals); or a folder with one of them or with GPT-2's two files (vocab.json and merges.txt, or encoder.json
            and vocab.bpe).

    Raises:
        ValueError: nothing of the kind is there, a damaged file, or the package is missing.
    """
    if name == "bytes":
        return ByteTokenizer()
    path = Path(name)
    if path.is_file():
        return _from_files({path.name: path.read_bytes()}, str(path))
    if not path.is_dir():
        raise ValueError(f"{path}: no such tokenizer: give `bytes`, a file or a folder")
    known = (JSON_FILE, _WORDPIECE_FILE, *(name for pair in _BPE_FILES for name in pair))
    files = {name: (path / name).read_bytes() for name in known if (path / name).is_file()}
    return _from_files(files, str(path))


def train_tokenizer(kind: Kind, texts: Iterable[str], vocab_size: int) -> SubwordTokenizer:
    """Learns a vocabulary from texts: keep its files, and compare hashes.

    The same texts give the same BPE again. WordPiece and unigram number equals in an order that differs from run to run,
    which is the package's doing.

    Args:
        kind: bpe as GPT-2's, wordpiece as BERT's uncased one, or unigram.
        texts: read once.
        vocab_size: tokens wanted, special ones included; fewer where the texts do not give as many.

    Raises:
        ValueError: an unknown kind, a vocabulary smaller than its alphabet, no text, or the package is missing.
    """
    package = _package()
    least = {"bpe": 257, "wordpiece": 30, "unigram": 30}
    if kind not in least:
        raise ValueError(f"the kind of tokenizer is {kind!r}: choose one of {', '.join(least)}")
    if vocab_size < least[kind]:
        raise ValueError(f"vocab_size is {vocab_size}: {kind} needs at least {least[kind]}")
    inner, trainer = _untrained(package, kind, vocab_size)
    counter = _Counted(texts)
    inner.train_from_iterator(counter, trainer)
    if not counter.characters:
        raise ValueError("there is no text to learn a vocabulary from")
    return SubwordTokenizer(inner)


class _Counted:
    """Texts that pass by, and how much they hold."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts, self.characters = texts, 0

    def __iter__(self) -> Any:
        for text in self.texts:
            self.characters += len(text.strip())
            yield _clean(text)


def _clean(text: str) -> str:
    """Lone surrogates, which stand for undecodable bytes and cannot be encoded, become the replacement character."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _package() -> Any:
    try:
        return importlib.import_module("tokenizers")
    except ImportError:
        raise ValueError("this tokenizer needs a package: pip install 'bigbatch[transformers]'") from None


def _from_files(files: Mapping[str, bytes], source: str) -> SubwordTokenizer:
    package = _package()
    try:
        if JSON_FILE in files or (len(files) == 1 and next(iter(files)).endswith(".json")):
            content = files.get(JSON_FILE) or next(iter(files.values()))
            return SubwordTokenizer(package.Tokenizer.from_str(content.decode("utf-8")))
        for vocabulary, merges in _BPE_FILES:
            if vocabulary in files and merges in files:
                return _gpt2(package, files[vocabulary], files[merges])
        text = next(
            (content for name, content in files.items() if name.endswith(".txt") and name != "merges.txt"), None
        )
        if text is not None:
            return _bert(package, text)
    except (ValueError, UnicodeDecodeError, KeyError) as error:
        raise ValueError(f"{source}: not a tokenizer that can be read ({error})") from None
    except Exception as error:  # the package raises nothing narrower
        if type(error) is not Exception:
            raise
        raise ValueError(f"{source}: not a tokenizer that can be read ({error})") from None
    raise ValueError(
        f"{source}: no tokenizer here: it takes {JSON_FILE}, {_WORDPIECE_FILE}, or vocab.json and merges.txt"
    )


def _gpt2(package: Any, vocabulary: bytes, merges: bytes) -> SubwordTokenizer:
    lines = merges.decode("utf-8").split("\n")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    numbers = json.loads(vocabulary)
    for pair in pairs:  # the package does not survive these
        if len(pair) != 2 or not {*pair, "".join(pair)} <= numbers.keys():
            raise ValueError(f"the merge {' '.join(pair)!r} is of other tokens than the vocabulary's")
    inner = package.Tokenizer(package.models.BPE(numbers, pairs))
    inner.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = package.decoders.ByteLevel()
    if inner.token_to_id(END_OF_TEXT) is not None:
        inner.add_special_tokens([END_OF_TEXT])
    return SubwordTokenizer(inner)


def _bert(package: Any, vocabulary: bytes) -> SubwordTokenizer:
    tokens = vocabulary.decode("utf-8").rstrip("\n").split("\n")
    numbers = {token.rstrip("\r"): number for number, token in enumerate(tokens)}
    if "[UNK]" not in numbers:
        raise ValueError("a WordPiece vocabulary has the token [UNK]")
    lowercase = not any("A" <= token[:1] <= "Z" for token in numbers)
    inner = _wordpiece(package, package.models.WordPiece(numbers, unk_token="[UNK]"), lowercase)
    inner.add_special_tokens([token for token in BERT_SPECIALS if token in numbers])
    return SubwordTokenizer(inner)


def _wordpiece(package: Any, model: Any, lowercase: bool) -> Any:
    inner = package.Tokenizer(model)
    inner.normalizer = package.normalizers.BertNormalizer(lowercase=lowercase)
    inner.pre_tokenizer = package.pre_tokenizers.BertPreTokenizer()
    inner.decoder = package.decoders.WordPiece(prefix="##")
    return inner


def _untrained(package: Any, kind: Kind, vocab_size: int) -> tuple[Any, Any]:
    shared = {"vocab_size": vocab_size, "show_progress": False}
    if kind == "bpe":
        inner = package.Tokenizer(package.models.BPE())
        inner.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = package.decoders.ByteLevel()
        alphabet = package.pre_tokenizers.ByteLevel.alphabet()
        return inner, package.trainers.BpeTrainer(special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, **shared)
    if kind == "wordpiece":
        inner = _wordpiece(package, package.models.WordPiece(unk_token="[UNK]"), lowercase=True)
        return inner, package.trainers.WordPieceTrainer(special_tokens=list(BERT_SPECIALS), **shared)
    inner = package.Tokenizer(package.models.Unigram())
    inner.normalizer = package.normalizers.NFKC()
    inner.pre_tokenizer = package.pre_tokenizers.Metaspace()
    inner.decoder = package.decoders.Metaspace()
    specials = [*BERT_SPECIALS, END_OF_TEXT]
    return inner, package.trainers.UnigramTrainer(special_tokens=specials, unk_token="[UNK]", **shared)
