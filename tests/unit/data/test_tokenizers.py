"""Tokenizers: bytes without any package, GPT-2's and BERT's vocabularies against a second reading, learned ones."""

from __future__ import annotations

import importlib
import itertools
import json
from pathlib import Path

import pytest
from bigbatch.data import tokenizers as module
from bigbatch.data.tokenizers import ByteTokenizer, SubwordTokenizer, load_tokenizer, train_tokenizer

TEXTS = [
    "The kettle whistles before the water is warm, and nobody minds.",
    "A lamp that hums; two weeks later it hummed no more!",
    "Café prices, naïve hopes, 12.50 € for a sandwich...",
    "\tTabs  and   spaces\n\nand lines",
]
CORPUS = [f"{text} {number}" for number in range(40) for text in TEXTS]


@pytest.fixture(autouse=True)
def _needs_the_package(request: pytest.FixtureRequest) -> None:
    if "bytes" not in request.node.name and "missing" not in request.node.name:
        pytest.importorskip("tokenizers", reason="subword tokenizers need `pip install tokenizers`")


def test_bytes_go_there_and_back() -> None:
    tokenizer = load_tokenizer("bytes")
    assert isinstance(tokenizer, ByteTokenizer) and tokenizer.vocab_size == 256 and tokenizer.files() == {}
    for text in [*TEXTS, "broken \udcff byte"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert bytes(tokenizer.encode(text)) == text.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_a_learned_tokenizer_is_the_same_from_its_file(kind: str, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(kind, CORPUS, 400)
    assert tokenizer.vocab_size <= 400
    if kind == "bpe":
        assert train_tokenizer(kind, CORPUS, 400).hash == tokenizer.hash
    assert len(tokenizer.hash) == 64 and tokenizer.hash != train_tokenizer(kind, CORPUS[:80], 300).hash
    for name, content in tokenizer.files().items():
        (tmp_path / name).write_bytes(content)
    opened = load_tokenizer(tmp_path)
    assert opened.hash == tokenizer.hash
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert opened.encode(text) == ids and max(ids) < tokenizer.vocab_size
        assert len(ids) < len(text.encode())
    assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]


def test_bpe_loses_nothing_and_the_others_only_what_they_normalise() -> None:
    bpe = train_tokenizer("bpe", CORPUS, 400)
    for text in [*TEXTS, "unseen: žluťoučký 漢字"]:
        assert bpe.decode(bpe.encode(text)) == text
    wordpiece = train_tokenizer("wordpiece", CORPUS, 400)
    assert wordpiece.decode(wordpiece.encode("The LAMP hums")) == "the lamp hums"
    unigram = train_tokenizer("unigram", CORPUS, 400)
    assert unigram.decode(unigram.encode("two weeks later")) == "two weeks later"
    assert isinstance(bpe.encode("broken \udcff byte"), list)


def test_special_tokens_are_not_added_but_known() -> None:
    wordpiece = train_tokenizer("wordpiece", CORPUS, 400)
    assert [wordpiece.id_of(token) for token in module.BERT_SPECIALS] == [0, 1, 2, 3, 4]
    assert not set(wordpiece.encode("the lamp")) & {0, 1, 2, 3, 4}
    assert train_tokenizer("bpe", CORPUS, 400).id_of(module.END_OF_TEXT) == 0
    with pytest.raises(ValueError, match=r"the vocabulary of \d+ tokens has no '\[CLS\]'"):
        train_tokenizer("bpe", CORPUS, 400).id_of("[CLS]")


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_tokens_that_go_on_with_a_word(kind: str) -> None:
    tokenizer = train_tokenizer(kind, CORPUS, 330)
    continues = tokenizer.continues()
    assert continues.shape == (tokenizer.vocab_size,)
    words = ["the", "kettle", "hummed", "two", "sandwiches"]
    ids = tokenizer.encode(" ".join(words))
    begins = sum(not continues[number] for number in ids)
    # BPE does not put a space before the first word.
    assert begins == len(words) - (kind == "bpe") and len(ids) > len(words)
    for token in (*module.BERT_SPECIALS, module.END_OF_TEXT):
        number = tokenizer.inner.token_to_id(token)
        assert number is None or not continues[number]


# -- published vocabularies --------------------------------------------------------------------------------------------


def by_merging(text: str, ranks: dict[tuple[str, str], int], numbers: dict[str, int]) -> list[int]:
    """One word of GPT-2, merged pair by pair as the rule is written."""
    table, extra = {}, 0
    for byte in range(256):
        visible = 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255
        table[byte] = chr(byte) if visible else chr(256 + extra)
        extra += not visible
    parts = [table[byte] for byte in text.encode()]
    while len(parts) > 1:
        rank, place = min((ranks.get(pair, 1 << 30), n) for n, pair in enumerate(itertools.pairwise(parts)))
        if rank == 1 << 30:
            break
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return [numbers[part] for part in parts]


def test_gpt2_is_read_from_its_own_files(corpora: Path) -> None:
    folder = corpora / "vocab" / "gpt2"
    tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer, SubwordTokenizer)
    assert tokenizer.vocab_size == 50257 and tokenizer.id_of(module.END_OF_TEXT) == 50256
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    numbers = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
    lines = (folder / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]
    ranks = {tuple(line.split()): n for n, line in enumerate(lines) if line}
    for word in (" whistles", " naïve", "Uncharacteristically", " €", " 漢字"):
        assert tokenizer.encode(word) == by_merging(word, ranks, numbers)
    assert tokenizer.encode("Hello world") == [15496, 995]


def test_bert_is_read_from_its_vocabulary(corpora: Path) -> None:
    path = corpora / "vocab" / "bert-base-uncased-vocab.txt"
    tokenizer = load_tokenizer(path)
    assert isinstance(tokenizer, SubwordTokenizer) and tokenizer.vocab_size == 30522
    assert [tokenizer.id_of(token) for token in module.BERT_SPECIALS] == [0, 100, 101, 102, 103]
    vocabulary = path.read_text(encoding="utf-8").split("\n")

    def greedy(word: str) -> list[str]:
        pieces, begin = [], 0
        while begin < len(word):
            for end in range(len(word), begin, -1):
                piece = ("##" if begin else "") + word[begin:end]
                if piece in known:
                    pieces.append(piece)
                    begin = end
                    break
            else:
                return ["[UNK]"]
        return pieces

    known = set(vocabulary)
    for word in ("whistles", "sandwiches", "uncharacteristically", "naive", "hummed"):
        assert [vocabulary[number] for number in tokenizer.encode(word)] == greedy(word)
    assert tokenizer.encode("NAÏVE") == tokenizer.encode("naive")
    continues = tokenizer.continues()
    assert [vocabulary[n] for n in continues.nonzero()[0]] == [token for token in vocabulary if token.startswith("##")]


# -- input that does not fit -------------------------------------------------------------------------------------------


def test_tokenizers_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere: no such tokenizer: give `bytes`, a file or a folder"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no tokenizer here: it takes tokenizer.json, vocab.txt, or vocab.json and"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"not a tokenizer that can be read \(a WordPiece vocabulary has the token"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="not a tokenizer that can be read"):
        load_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    with pytest.raises(ValueError, match="the merge 'a b' is of other tokens than the vocabulary's"):
        load_tokenizer(tmp_path)


def test_vocabularies_that_cannot_be_learned_are_named() -> None:
    with pytest.raises(ValueError, match="vocab_size is 256: bpe needs at least 257"):
        train_tokenizer("bpe", CORPUS, 256)
    with pytest.raises(ValueError, match="the kind of tokenizer is 'words': choose one of bpe, wordpiece, unigram"):
        train_tokenizer("words", CORPUS, 400)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="there is no text to learn a vocabulary from"):
        train_tokenizer("wordpiece", ["", "  "], 400)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    (tmp_path / "vocab.txt").write_text("[UNK]\n")
    with pytest.raises(ValueError, match=r"this tokenizer needs a package: pip install 'bigbatch\[transformers\]'"):
        load_tokenizer(tmp_path)
    assert load_tokenizer("bytes").vocab_size == 256
