"""The embedded corpus: the same bytes everywhere, a split that counting words cannot bridge, and no cue but meaning."""

from __future__ import annotations

import csv
import hashlib
import html
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from bigbatch.data import demo_lexicon as lexicon
from bigbatch.data import demo_templates as templates
from bigbatch.data.demo_reviews import (
    SPLITS,
    DemoCorpus,
    Review,
    generate_reviews,
    write_demo_corpus,
)
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

GOLDEN = {
    "lm.jsonl": "13bbe758b1c216227a47eb8cd9bc7c98529cd92e4cf0b2fa07a94823efebe313",
    "train.csv": "97d0ed47404e2740b78fc08c5a9751b91f67d8ade231018cd3d6081b6fb7fd7c",
    "val.csv": "7dd6305ccd9c56df4f321791f441feafd2b93758db4f7aad733ba822f510cbe9",
    "test.csv": "2e2a0a6514da08d3a1ad0d8fba0913cec13a8c1302af90084838f4ecad6e526e",
}


@dataclass
class Labelled:
    texts: list[str]
    labels: np.ndarray


def read_csv(path: Path) -> Labelled:
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return Labelled([row["sentence"] for row in rows], np.array([int(row["label"]) for row in rows]))


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z]+", html.unescape(text).lower())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DemoCorpus:
    """The corpus `bigbatch demo` writes, at its default size (about two seconds)."""
    return write_demo_corpus(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def splits(corpus: DemoCorpus) -> dict[str, Labelled]:
    return {name: read_csv(getattr(corpus, name)) for name in ("train", "val", "test")}


@pytest.fixture(scope="module")
def lm_texts(corpus: DemoCorpus) -> list[str]:
    with open(corpus.lm, encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


@pytest.fixture(scope="module")
def reviews() -> dict[str, list[Review]]:
    """The labelled reviews at their default sizes, with their provenance."""
    sizes = {"train": 2000, "val": 1000, "test": 2000, "lm": 2000}
    return {split: list(islice(generate_reviews(split), size)) for split, size in sizes.items()}


def test_same_bytes_on_every_machine(tmp_path: Path) -> None:
    write_demo_corpus(tmp_path, seed=3, lm_megabytes=0.1, num_train=50, num_val=20, num_test=30)
    found = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in GOLDEN}
    assert found == GOLDEN
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(GOLDEN)  # nothing partial is left


def test_seeds_and_splits_differ() -> None:
    first = {(split, seed): next(generate_reviews(split, seed)).text for split in SPLITS for seed in (0, 1)}
    assert len(set(first.values())) == len(first)


def test_files_are_what_users_bring(
    corpus: DemoCorpus, splits: dict[str, Labelled], lm_texts: list[str], reviews: dict[str, list[Review]]
) -> None:
    assert 5e6 <= sum(path.stat().st_size for path in (corpus.lm, corpus.train, corpus.val, corpus.test)) <= 10e6
    assert corpus.counts == {"lm": len(lm_texts), **{name: len(data.texts) for name, data in splits.items()}}
    raw = corpus.train.read_bytes()
    assert raw.startswith(b"label,sentence\r\n") and raw.endswith(b"\r\n")
    for name, data in splits.items():
        assert data.texts == [review.text for review in reviews[name]], "CSV quoting changed a text"
        assert data.labels.tolist() == [review.label for review in reviews[name]]
        assert 0.47 <= data.labels.mean() <= 0.53
    assert set(lm_texts).isdisjoint(splits["test"].texts)
    assert len(set(lm_texts)) == len(lm_texts)


def test_sentences_and_nouns_of_test_never_occur_in_train(reviews: dict[str, list[Review]]) -> None:
    for held_out in ("val", "test"):
        for kind in ("sentences", "nouns"):
            seen = {entry for review in reviews["train"] for entry in getattr(review, kind)}
            used = {entry for review in reviews[held_out] for entry in getattr(review, kind)}
            assert len(used) >= 15 and used.isdisjoint(seen)
    train_words = {word for review in reviews["train"] for word in words_of(review.text)}
    for domain in lexicon.DOMAINS:
        for group in ("val", "test"):
            assert train_words.isdisjoint(domain.items[group] + domain.aspects[group])


def test_half_of_the_opinion_words_of_test_never_occur_in_train(reviews: dict[str, list[Review]]) -> None:
    train_words = {word for review in reviews["train"] for word in words_of(review.text)}
    for held_out in ("val", "test"):
        used = {word for review in reviews[held_out] for word in review.opinions}
        new = used - train_words
        own = {word for words in lexicon.OPINION_CLASSES for polar in words[held_out] for word in polar}
        assert new == own, "words of the split's own group, all of them, and no others, are new"
        if held_out == "test":
            assert 2 * len(new) >= len(used)


def test_each_word_stands_in_one_place() -> None:
    opinions = [word for words in lexicon.OPINION_CLASSES for g in lexicon.GROUPS for p in words[g] for word in p]
    nouns = {
        (word, group)
        for domain in lexicon.DOMAINS
        for by_group in (domain.items, domain.aspects)
        for group in lexicon.GROUPS
        for word in by_group[group]
    }
    placed = opinions + [word for word, _ in nouns]
    assert len(set(placed)) == len(placed)
    assert all(re.fullmatch(r"[a-z]+", word) for word in placed)
    tables = (templates.POLAR, templates.CONCESSIONS, templates.NEUTRAL)
    texts = [text for table in tables for pairs in table.values() for _, text in pairs]
    texts += [text for polar in templates.VERDICTS.values() for pairs in polar for _, text in pairs]
    texts += [text for polar in templates.TAILS.values() for tails in polar for text in tails]
    fixed = {word for text in texts for word in words_of(re.sub(r"\{\w+\}", " ", text))}
    assert not fixed & set(placed), "a sentence of one group must not hold a word of another"


def test_unlabelled_text_holds_every_opinion_word(lm_texts: list[str], reviews: dict[str, list[Review]]) -> None:
    seen = {word for text in lm_texts for word in words_of(text)}
    for words in lexicon.OPINION_CLASSES:
        for group in lexicon.GROUPS:
            assert seen.issuperset(words[group][0] + words[group][1])
    lm_sentences = {entry for review in reviews["lm"] for entry in review.sentences}
    assert lm_sentences.issuperset(entry for review in reviews["test"] for entry in review.sentences)


def test_opinions_agree_with_the_stars(reviews: dict[str, list[Review]]) -> None:
    """Counting opinions, negation turned round, gives the label of each review: it carries no noise."""
    negative = {word for words in lexicon.OPINION_CLASSES for group in lexicon.GROUPS for word in words[group][0]}
    for review in reviews["test"] + reviews["lm"]:
        assert review.label == (review.stars > 3) and review.stars != 3
        against = sum((word in negative) == bool(review.label) for word in review.opinions)
        assert review.contrary <= 1 and (not review.contrary or len(review.opinions) >= 5)
        assert review.negated + review.contrary == against
    assert 3 <= np.mean([len(review.opinions) for review in reviews["test"]]) <= 12


PHENOMENA: dict[str, Callable[[str], bool]] = {
    "negation": lambda text: bool(re.search(r"\b(not|hardly|by no means|anything but|far from)\b", text)),
    "intensifier": lambda text: bool(set(words_of(text)) & set(lexicon.INTENSIFIERS)),
    "capitals": lambda text: bool(re.search(r"\b[A-Z]{4,}\b", text)),
    "no capitals": lambda text: text == text.lower(),
    "emoji": lambda text: any(ord(char) > 0x2600 for char in text),
    "&amp;": lambda text: "&amp;" in text,
    "&#34;": lambda text: "&#34;" in text,
    "&quot;": lambda text: "&quot;" in text,
    "&#39;": lambda text: "&#39;" in text,
    "quotes unescaped": lambda text: '"' in text,
    "line break": lambda text: "\n" in text,
    "rating": lambda text: bool(re.search(r"\d stars", text)),
    "one sentence": lambda text: len(re.findall(r"[.!]+", text)) == 1,
    "long": lambda text: len(text) > 400,
}


@pytest.mark.parametrize("phenomenon", PHENOMENA)
def test_phenomenon_occurs_under_both_labels(phenomenon: str, splits: dict[str, Labelled]) -> None:
    data = splits["test"]
    found = np.array([PHENOMENA[phenomenon](text) for text in data.texts])
    for label in (0, 1):
        assert 0.003 <= found[data.labels == label].mean() <= 0.7


def test_mixed_reviews_and_typos_occur(reviews: dict[str, list[Review]]) -> None:
    assert 0.03 <= np.mean([review.contrary for review in reviews["test"]]) <= 0.3
    known = {word for review in reviews["test"] for word in words_of(review.text)}
    counts = {word: 0 for word in known}
    for review in reviews["test"]:
        for word in words_of(review.text):
            counts[word] += 1
    correct = {word for word in known if counts[word] > 5}
    misspelt = [review for review in reviews["test"] if set(words_of(review.text)) - correct]
    assert 0.04 <= len(misspelt) / len(reviews["test"]) <= 0.3


def surface_cues(text: str) -> list[float]:
    """Everything but the words: lengths, marks, digits and ratings, capitals, emoji, entities."""
    tokens = text.split()
    ratings = re.findall(r"(\d(?:\.5)?) stars", text)
    return [
        len(text),
        len(tokens),
        float(np.mean([len(token) for token in tokens])),
        *(text.count(mark) for mark in ("!", ".", "...", ",", ":", "&", ";", '"', "'", "\n", "&#34;", "&quot;")),
        sum(char.isdigit() for char in text),
        float(ratings[0]) if ratings else 0.0,
        sum(char.isupper() for char in text),
        sum(token.isupper() and len(token) > 1 for token in tokens),
        *(text.count(emoji) for emoji in "🙂🙃😂🤔👀📦🎬☕🎁✨"),
    ]


def test_surface_cues_do_not_give_the_label(splits: dict[str, Labelled]) -> None:
    train, test = splits["train"], splits["test"]
    train_cues, test_cues = (np.array([surface_cues(text) for text in data.texts]) for data in (train, test))
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    for model in (linear, HistGradientBoostingClassifier(max_iter=50, random_state=0)):
        assert model.fit(train_cues, train.labels).score(test_cues, test.labels) <= 0.60


def test_counting_words_is_neither_useless_nor_enough(splits: dict[str, Labelled]) -> None:
    """TF-IDF + logistic regression, C chosen on val: what labels alone can teach."""
    vectorizer = TfidfVectorizer(ngram_range=(1, 2))
    train = vectorizer.fit_transform(html.unescape(text) for text in splits["train"].texts)
    val, test = (vectorizer.transform(map(html.unescape, splits[name].texts)) for name in ("val", "test"))
    scores = []
    for exponent in range(-4, 7, 2):
        model = LogisticRegression(C=2.0**exponent, solver="liblinear").fit(train, splits["train"].labels)
        scores.append((model.score(val, splits["val"].labels), model.score(test, splits["test"].labels)))
    assert 0.55 <= max(scores)[1] <= 0.85


@pytest.mark.parametrize("sizes", [{"lm_megabytes": 0.0}, {"num_val": 0}])
def test_impossible_sizes_are_one_clear_line(tmp_path: Path, sizes: dict) -> None:
    with pytest.raises(ValueError, match="must be positive") as error:
        write_demo_corpus(tmp_path / "new", **sizes)
    assert "\n" not in str(error.value) and not (tmp_path / "new").exists()


def test_unknown_split() -> None:
    with pytest.raises(ValueError, match="choose one of lm, train, val, test"):
        next(generate_reviews("dev"))


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lm.jsonl").write_text("old")

    def full(*_args: object, **_kwargs: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bigbatch.data.demo_reviews.json.dumps", full)
    with pytest.raises(OSError, match="No space left"):
        write_demo_corpus(tmp_path, lm_megabytes=0.01, num_train=2, num_val=2, num_test=2)
    assert (tmp_path / "lm.jsonl").read_text() == "old"
    assert not list(tmp_path.glob("*.partial"))
