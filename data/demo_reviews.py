"""The embedded demo corpus: a seeded generator of product and film reviews whose wording depends on the verdict.

A review has a star rating (1, 2, 4 or 5; positive above 3), which decides every opinion in it: words, negated words
of the other polarity, closing sentences; reviews of 2 and 4 stars may hold one opinion to the contrary. All else
(length, punctuation, capitals, emoji, typos, digits, other people's ratings, HTML entities) is drawn without a look
at the stars, so that only the meaning of words gives the label away.

The unlabelled text uses every word and sentence there is. The labelled splits own groups of them (`demo_lexicon.py`,
`demo_templates.py`): sentences and nouns of val and test never occur in train, nor do most of their opinion words.
A model that has read the unlabelled text can know better; one that has only the labels can not.

Sentences are terse and dense with opinions, and common words are common (`pick_early`), on purpose: a byte model that
trains for minutes meets several opinions within each of its windows, so keeping the verdict in mind pays early.

Deterministic to the byte on every machine and Python version: `random.Random(seed).random()` is the only source of
chance, and no set, hash or locale decides an order. Reading the files back is left to `sources.py` and `labelled.py`.
"""

from __future__ import annotations

import csv
import json
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TextIO, TypeVar

from . import demo_templates as templates
from .demo_lexicon import (
    ADJECTIVES,
    ADVERBS,
    COMMENTS,
    DOMAINS,
    GROUPS,
    INTENSIFIERS,
    NOUNS,
    PEOPLE,
    PLACES,
    STANCES,
    TIMES,
    VERBS,
    ByGroup,
    Opinions,
)

SPLITS = ("lm", "train", "val", "test")

_SENTENCE_GROUPS = {"lm": (0.4, 0.6, 1.0), "train": (1.0, 1.0, 1.0), "val": (0.0, 1.0, 1.0), "test": (0.0, 0.0, 1.0)}
"""Split -> bounds in [0, 1) of the groups train, val and test, for sentences and nouns: the width is the chance."""

_OPINION_GROUPS = {"lm": (0.4, 0.6, 1.0), "train": (1.0, 1.0, 1.0), "val": (0.08, 1.0, 1.0), "test": (0.08, 0.08, 1.0)}
"""The same for opinion words: val and test share some with train, so that counting words is worth something."""

_KINDS = ("polar",) * 16 + ("verdict",) * 2 + ("neutral",) * 2
"""Kinds of sentences in the middle of a review, as often as they come."""

_EMOJI = ("🙂", "🙃", "😂", "🤔", "👀", "📦", "🎬", "☕", "🎁", "✨")
_T = TypeVar("_T")
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass
class Review:
    """One review and how it came about.

    Attributes:
        text: as a shop's database would hold it: raw, possibly with HTML entities, emoji and line breaks.
        stars: 1, 2, 4 or 5.
        label: 1 (positive) above three stars, else 0.
        sentences: the templates used, as in `demo_templates.py`.
        nouns: items and aspects used.
        opinions: opinion words used, in reading order, before capitals and typos.
        negated: how many of them are negated: "hardly dull" in a positive review.
        contrary: how many of them speak against the verdict.
    """

    text: str = ""
    stars: int = 0
    label: int = 0
    sentences: list[str] = field(default_factory=list)
    nouns: list[str] = field(default_factory=list)
    opinions: list[str] = field(default_factory=list)
    negated: int = 0
    contrary: int = 0


@dataclass(frozen=True)
class DemoCorpus:
    """Where the files of a written corpus are, and how many reviews each holds."""

    lm: Path
    train: Path
    val: Path
    test: Path
    counts: dict[str, int]


class _Dice:
    """Chance from `random()` alone, whose sequence Python guarantees."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def below(self, limit: int) -> int:
        return int(self._random() * limit)

    def pick(self, options: Sequence[_T]) -> _T:
        return options[int(self._random() * len(options))]

    def pick_early(self, options: Sequence[_T]) -> _T:
        """As words go: the first are the most common ones, by about the square root of their rank."""
        draw = self._random()
        return options[int(draw * draw * len(options))]

    def group(self, bounds: tuple[float, ...]) -> str:
        draw = self._random()
        return next(group for group, bound in zip(GROUPS, bounds) if draw < bound)


def _article(phrase: str) -> str:
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


class _Writer:
    """Writes one review after another for one split."""

    def __init__(self, split: str, seed: int) -> None:
        self._dice = _Dice(seed * len(SPLITS) + SPLITS.index(split))
        self._sentence_groups = _SENTENCE_GROUPS[split]
        self._opinion_groups = _OPINION_GROUPS[split]
        self._parsed: dict[str, list[str]] = {}
        self._slots: dict[str, Callable[[], str]] = {
            "item": self._item,
            "aspect": self._aspect,
            "adj": lambda: self._opinion(ADJECTIVES),
            "a_adj": lambda: _article(self._opinion(ADJECTIVES)),
            "adjp": self._predicate,
            "con": lambda: self._opinion(ADJECTIVES, contrary=True),
            "a_con": lambda: _article(self._opinion(ADJECTIVES, contrary=True)),
            "noun": lambda: self._negatable(NOUNS, templates.NEGATED_NOUNS, _article),
            "verb": lambda: self._negatable(VERBS, templates.NEGATED_VERBS, str),
            "stance": lambda: self._opinion(STANCES),
            "adv": lambda: self._opinion(ADVERBS),
            "person": lambda: self._dice.pick_early(self._own(PEOPLE)),
            "when": lambda: self._dice.pick_early(self._own(TIMES)),
            "place": lambda: self._dice.pick_early(self._own(PLACES)),
            "count": lambda: str(2 + self._dice.below(98)),
            "stars": lambda: self._dice.pick(("1", "2", "3", "4", "5", "2.5", "3.5", "4.5")),
        }

    def review(self) -> Review:
        dice = self._dice
        self._review = Review(stars=dice.pick((1, 2, 4, 5)))
        self._review.label = int(self._review.stars > 3)
        self._domain = dice.pick(DOMAINS)
        self._item_noun = ""
        sentences = [self._sentence(kind) for kind in self._plan()]
        self._review.text = _dress(dice, [sentence[0].upper() + sentence[1:] for sentence in sentences])
        return self._review

    def _plan(self) -> list[str]:
        """The kinds of the sentences, in order: an opinion early, another at the end."""
        dice = self._dice
        low, high = dice.pick(((1, 1), (2, 4), (2, 4), (5, 8), (5, 8), (9, 14)))
        count = low + dice.below(high - low + 1)
        plan = [_KINDS[dice.below(len(_KINDS))] for _ in range(count)]
        plan[0] = "neutral" if count > 2 and dice.chance(0.2) else "polar"
        if count > 1:
            plan[1] = "polar"
            plan[-1] = "verdict" if dice.chance(0.4) else "polar"
        mild = self._review.stars in (2, 4)
        if mild and plan.count("polar") >= 4 and dice.chance(0.7):
            plan.insert(2 + dice.below(count - 2), "concession")
        return plan

    def _sentence(self, kind: str) -> str:
        group = self._dice.group(self._sentence_groups)
        pool = {
            "polar": templates.POLAR[group],
            "neutral": templates.NEUTRAL[group],
            "concession": templates.CONCESSIONS[group],
            "verdict": templates.VERDICTS[group][self._review.label],
        }[kind]
        wanted, text = self._dice.pick_early(pool)
        while wanted not in ("any", self._domain.kind):
            wanted, text = self._dice.pick_early(pool)
        self._review.sentences.append(text)
        if kind != "polar":
            return self._fill(text)
        comment = self._opinion(COMMENTS) + ", " if self._dice.chance(0.45) else ""
        sentence = comment + self._fill(text)
        if self._dice.chance(0.15):
            tails = templates.TAILS[self._dice.group(self._sentence_groups)]
            self._review.sentences.append(self._dice.pick(tails[self._review.label]))
            sentence += ", " + self._review.sentences[-1]
        return sentence

    def _fill(self, text: str) -> str:
        parts = self._parsed.setdefault(text, _SLOT.split(text))
        filled = list(parts)
        for position in range(1, len(parts), 2):
            filled[position] = self._slots[parts[position]]()
        return "".join(filled)

    def _own(self, words: ByGroup) -> tuple[str, ...]:
        return words[self._dice.group(self._sentence_groups)]

    def _item(self) -> str:
        """The thing under review keeps its name to the end."""
        if not self._item_noun:
            self._item_noun = self._dice.pick(self._own(self._domain.items))
            self._review.nouns.append(self._item_noun)
        return self._item_noun

    def _aspect(self) -> str:
        self._review.nouns.append(self._dice.pick(self._own(self._domain.aspects)))
        return self._review.nouns[-1]

    def _opinion(self, words: Opinions, contrary: bool = False, negated: bool = False) -> str:
        polarity = self._review.label ^ contrary ^ negated
        word = self._dice.pick_early(words[self._dice.group(self._opinion_groups)][polarity])
        self._review.opinions.append(word)
        self._review.negated += negated
        self._review.contrary += contrary
        return word

    def _negatable(self, words: Opinions, negations: dict[str, tuple[str, ...]], form: Callable[[str], str]) -> str:
        if self._dice.chance(0.12):
            negation = self._dice.pick_early(self._own(negations))
            return negation.format(form(self._opinion(words, negated=True)))
        return form(self._opinion(words))

    def _predicate(self) -> str:
        strong = self._review.stars in (1, 5)
        if self._dice.chance(0.7 if strong else 0.4):
            intensifier = self._opinion(ADVERBS) if self._dice.chance(0.6) else self._dice.pick_early(INTENSIFIERS)
            return intensifier + " " + self._opinion(ADJECTIVES)
        return self._negatable(ADJECTIVES, templates.NEGATED_ADJECTIVES, str)


def _dress(dice: _Dice, sentences: list[str]) -> str:
    """Punctuation, typing and markup habits of one author; none depends on the verdict."""
    excited = dice.chance(0.2)
    marked: list[str] = []
    for sentence in sentences:
        mark = "!" if dice.chance(0.6 if excited else 0.04) else "..." if dice.chance(0.03) else "."
        marked.append(sentence + mark)
    words: list[str] = " ".join(marked).split(" ")
    if dice.chance(0.08):
        for _ in range(1 + dice.below(2)):
            _misspell(dice, words)
    if dice.chance(0.08):
        for _ in range(1 + dice.below(2)):
            shouted = dice.below(len(words))
            words[shouted] = words[shouted].upper()
    text = " ".join(words)
    if len(sentences) > 6 and dice.chance(0.3):
        text = text.replace(". ", ".\n", 1)
    if dice.chance(0.03):
        text = text.lower()
    if dice.chance(0.1):
        text = text.replace(" and ", " & ")
    if dice.chance(0.1):
        text += " " + dice.pick(_EMOJI) * (1 + dice.below(2))
    if dice.chance(0.3):
        quote = dice.pick(("&quot;", "&#34;"))
        text = text.replace("&", "&amp;").replace('"', quote).replace("'", "&#39;")
    return text


def _misspell(dice: _Dice, words: list[str]) -> None:
    """Swap, drop or double a letter inside one of the words, if the word drawn is long enough."""
    index = dice.below(len(words))
    word = words[index]
    if len(word) < 5 or not word.isalpha():
        return
    at = 1 + dice.below(len(word) - 3)
    middle = dice.pick((word[at + 1] + word[at], word[at + 1], word[at] * 2 + word[at + 1]))
    words[index] = word[:at] + middle + word[at + 2 :]


def generate_reviews(split: str, seed: int = 0) -> Iterator[Review]:
    """Endless reviews of one split, no two with the same text.

    Args:
        split: "lm", "train", "val" or "test"; decides which words and sentences may be used.
        seed: the same seed gives the same reviews, on every machine.

    Raises:
        ValueError: unknown split.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown demo split {split!r}: choose one of {', '.join(SPLITS)}")
    writer = _Writer(split, seed)
    seen: set[str] = set()
    while True:
        review = writer.review()
        if review.text not in seen:
            seen.add(review.text)
            yield review


def write_demo_corpus(
    folder: str | Path,
    seed: int = 0,
    lm_megabytes: float = 6.0,
    num_train: int = 2000,
    num_val: int = 1000,
    num_test: int = 2000,
) -> DemoCorpus:
    """Write `lm.jsonl`, `train.csv`, `val.csv` and `test.csv` into a folder, each of them whole or not at all.

    Args:
        folder: created if missing; files of these names are replaced.
        seed: the same arguments give the same bytes.
        lm_megabytes: least size of `lm.jsonl` in units of 10^6 bytes.
        num_train: reviews in `train.csv`; half of them positive, give or take chance. `num_val`, `num_test` alike.

    Returns:
        The paths and the number of reviews in each file.

    Raises:
        ValueError: a size that is not positive.
    """
    sizes = {"train": num_train, "val": num_val, "test": num_test}
    if lm_megabytes <= 0 or min(sizes.values()) < 1:
        raise ValueError(f"demo corpus sizes must be positive, got lm_megabytes={lm_megabytes} and {sizes}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    labelled = {split: list(islice(generate_reviews(split, seed), size)) for split, size in sizes.items()}
    for split, reviews in labelled.items():
        with _atomic(folder / f"{split}.csv") as file:
            rows = csv.writer(file)  # RFC 4180: CRLF between rows, quotes doubled
            rows.writerow(("label", "sentence"))
            rows.writerows((review.label, review.text) for review in reviews)
    held_out = {review.text for reviews in labelled.values() for review in reviews}
    num_lm, num_bytes = 0, 0
    with _atomic(folder / "lm.jsonl") as file:
        for review in generate_reviews("lm", seed):
            if num_bytes >= lm_megabytes * 1e6:
                break
            if review.text in held_out:  # a language model must not have read what the probe is tested on
                continue
            line = json.dumps({"text": review.text}, ensure_ascii=False) + "\n"
            file.write(line)
            num_bytes += len(line.encode())
            num_lm += 1
    paths = (folder / name for name in ("lm.jsonl", "train.csv", "val.csv", "test.csv"))
    return DemoCorpus(*paths, counts={"lm": num_lm, **sizes})


@contextmanager
def _atomic(path: Path) -> Iterator[TextIO]:
    """A text file that appears under its name when the block ends well, and never half-written."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w", encoding="utf-8", newline="") as file:
            yield file
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
