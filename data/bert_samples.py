"""Samples of BERT: pairs of texts for the sentence objectives, with words masked.

Documents are cut into sentences, and those into spans of about a sample's length. A span gives one sample: its halves in
order, or the second half exchanged for one of another document (NSP) or the two halves swapped (SOP). All that is drawn
for sample n follows from (seed, n), so nothing is stored and every epoch masks other words. The order of the spans
follows from (seed, epoch). Masking is `mask_words`; which tokens begin a word is the tokenizer's to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from .gpt_samples import require_epochs
from .token_store import TokenStore

IGNORED = -100  # as the target of a token that is not predicted
_ORDER, _SAMPLE = 0, 1


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the tokens that are no text."""

    cls: int
    sep: int
    mask: int
    pad: int


class BERTSample(NamedTuple):
    """One sample, arrays of length T.

    Attributes:
        tokens: int64, [CLS] first [SEP] second [SEP] and padding.
        token_types: int64, 1 for the second text and its [SEP].
        mask: bool, False at padding.
        targets: int64, the true token where one is predicted, `IGNORED` elsewhere.
        label: 0 if the texts stand in order, 1 if they do not.
    """

    tokens: np.ndarray
    token_types: np.ndarray
    mask: np.ndarray
    targets: np.ndarray
    label: int


class MaskedWords(NamedTuple):
    """Tokens with some replaced, and what is to be predicted: int64 (T,) each."""

    tokens: np.ndarray
    targets: np.ndarray


@dataclass(frozen=True)
class MaskingRule:
    """How words are masked.

    Attributes:
        special: ids that are never masked.
        vocab_size: number of tokens that exist.
        continues: bool (vocab_size,), True for tokens that go on with the word before them ("##ing").
        probability: part of the tokens to predict.
        max_predictions: most tokens to predict.
        max_ngram: longest run of words masked together; a run of n words is drawn with a chance in proportion to 1 / n.
        keep_words_whole: False takes each token for a word.

    Raises:
        ValueError: values out of range.
    """

    special: SpecialTokens
    vocab_size: int
    continues: np.ndarray
    probability: float = 0.15
    max_predictions: int = 80
    max_ngram: int = 1
    keep_words_whole: bool = True

    def __post_init__(self) -> None:
        if not 0.0 < self.probability < 1.0:
            raise ValueError(f"the masking probability is {self.probability}: it must lie between 0 and 1")
        if self.max_predictions < 1 or self.max_ngram < 1:
            raise ValueError("max_predictions and max_ngram must be at least 1")
        if len(self.continues) != self.vocab_size:
            raise ValueError(f"`continues` tells of {len(self.continues)} tokens, the vocabulary has {self.vocab_size}")


def mask_words(tokens: np.ndarray, rule: MaskingRule, random: np.random.Generator) -> MaskedWords:
    """Masks whole words, or runs of them: of the tokens chosen 80 % become [MASK], 10 % any token, 10 % stay.

    Args:
        tokens: int64 (T,), special tokens included.
        rule: how.
        random: what draws.

    Source: Devlin et al. 2018, appendix A.1; whole words as in its later code; runs as in SpanBERT and ALBERT (Lan et al.
    2019, section 3.1).
    """
    special = rule.special
    text = ~np.isin(tokens, (special.cls, special.sep, special.pad))
    places = np.flatnonzero(text)
    budget = min(rule.max_predictions, max(1, round(rule.probability * len(places))), len(places))
    chosen = _choose(tokens, places, budget, rule, random)
    targets = np.full(len(tokens), IGNORED, np.int64)
    targets[chosen] = tokens[chosen]
    masked = np.array(tokens, np.int64)
    draw = random.random(len(chosen))
    masked[chosen[draw < 0.8]] = special.mask
    swapped = chosen[(draw >= 0.8) & (draw < 0.9)]
    masked[swapped] = random.integers(0, rule.vocab_size, len(swapped))
    return MaskedWords(masked, targets)


class BERTSamples:
    """The samples of a corpus by their number.

    Args:
        store: the tokens.
        doc_ids: documents to read, int64; all if None.
        sentence_ends: ids of tokens that end a sentence, such as those of full stop and question mark.
        seq_length: tokens T of a sample, special ones and padding included.
        rule: how words are masked.
        seed: of everything that is drawn.
        objective: nsp, sop, or none (one text a sample).
        short_probability: part of the samples that are cut to a random length, so that short texts are met in training.

    Raises:
        ValueError: no span of two tokens, NSP with a single document, a sample too short for two texts, a token outside
            the vocabulary.
    """

    def __init__(
        self,
        store: TokenStore,
        doc_ids: np.ndarray | None,
        sentence_ends: np.ndarray,
        seq_length: int,
        rule: MaskingRule,
        seed: int,
        objective: Literal["none", "nsp", "sop"] = "sop",
        short_probability: float = 0.1,
    ) -> None:
        if seq_length < 8:
            raise ValueError(f"seq_length is {seq_length}: two texts and their special tokens need at least 8")
        self.store, self.seq_length, self.rule, self.seed = store, seq_length, rule, seed
        self.objective, self.short_probability = objective, short_probability
        self._ends = np.zeros(rule.vocab_size, bool)
        self._ends[sentence_ends] = True
        self.room = seq_length - (2 if objective == "none" else 3)
        ids = np.arange(store.num_documents) if doc_ids is None else np.asarray(doc_ids, np.int64)
        self.spans, self._documents = _cut(store, ids, self._ends, self.room)
        if not len(self.spans):
            raise ValueError("the corpus has no document of two tokens: there is nothing to make BERT samples of")
        if objective == "nsp" and self._documents[0] == self._documents[-1]:
            raise ValueError(
                "NSP takes second texts from other documents, but the corpus has one: use sop or more text"
            )
        self._order: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        """Samples of an epoch."""
        return len(self.spans)

    def epochs(self, num_samples: int) -> float:
        """How many times `num_samples` samples read the corpus."""
        return num_samples / len(self)

    def require(self, num_samples: int, max_epochs: float) -> None:
        """Checks that the corpus suffices.

        Raises:
            ValueError: `num_samples` would read it more than `max_epochs` times; says how many.
        """
        require_epochs(self.epochs(num_samples), max_epochs, num_samples, f"{len(self):,} spans")

    def read(self, index: int) -> BERTSample:
        """The sample `index`, the number of samples consumed before it."""
        epoch, place = divmod(index, len(self))
        if self._order is None or self._order[0] != epoch:
            random = np.random.Generator(np.random.PCG64([self.seed, epoch, _ORDER]))
            self._order = epoch, random.permutation(len(self))
        random = np.random.Generator(np.random.PCG64([self.seed, index, _SAMPLE]))
        first, second, label = self._texts(int(self._order[1][place]), random)
        return self._assemble(first, second, label, random)

    def _texts(self, span: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray | None, int]:
        tokens = self.store.tokens[self.spans[span, 0] : self.spans[span, 1]]
        room = self.room
        if random.random() < self.short_probability:
            room = int(random.integers(2, room + 1))
        if self.objective == "none":
            return tokens[:room], None, 0
        pivot = self._pivot(tokens, random)
        first, second, label = tokens[:pivot], tokens[pivot:], int(random.random() < 0.5)
        if label and self.objective == "nsp":
            other = self._elsewhere(span, random)
            second = self.store.tokens[self.spans[other, 0] : self.spans[other, 1]]
        first, second = _fit(first, second, room, random)
        if label and self.objective == "sop":
            first, second = second, first
        return first, second, label

    def _pivot(self, tokens: np.ndarray, random: np.random.Generator) -> int:
        """Where a span is cut in two: after a sentence, or anywhere if it is a single one."""
        cuts = np.flatnonzero(self._ends[tokens[:-1]]) + 1
        return int(random.choice(cuts)) if len(cuts) else int(random.integers(1, len(tokens)))

    def _elsewhere(self, span: int, random: np.random.Generator) -> int:
        """A span of another document: the spans of a document stand together, so those around it are counted."""
        first, last = np.searchsorted(self._documents, self._documents[span], "left"), self._documents[span]
        last = int(np.searchsorted(self._documents, last, "right"))
        other = int(random.integers(0, len(self) - (last - int(first))))
        return other if other < first else other + last - int(first)

    def _assemble(
        self, first: np.ndarray, second: np.ndarray | None, label: int, random: np.random.Generator
    ) -> BERTSample:
        special, length = self.rule.special, self.seq_length
        parts = [[special.cls], first, [special.sep]]
        if second is not None:
            parts += [second, [special.sep]]
        text = np.concatenate(parts).astype(np.int64)
        masked = mask_words(text, self.rule, random)
        tokens, targets = np.full(length, special.pad, np.int64), np.full(length, IGNORED, np.int64)
        tokens[: len(text)], targets[: len(text)] = masked.tokens, masked.targets
        types = np.zeros(length, np.int64)
        types[len(first) + 2 : len(text)] = 1
        return BERTSample(tokens, types, np.arange(length) < len(text), targets, label)


def _choose(
    tokens: np.ndarray, places: np.ndarray, budget: int, rule: MaskingRule, random: np.random.Generator
) -> np.ndarray:
    """Places to predict, sorted: runs of words in random order, as long as they fit into the budget."""
    begins = np.ones(len(places), bool)
    if rule.keep_words_whole:
        # Not where another word, or the other text, stands between.
        begins[1:] = ~rule.continues[tokens[places[1:]]] | (np.diff(places) > 1)
    words = np.split(places, np.flatnonzero(begins)[1:])
    sizes = np.arange(1, rule.max_ngram + 1)
    chances = (1 / sizes) / (1 / sizes).sum()
    drawn = random.choice(sizes, len(words), p=chances)
    taken = np.zeros(len(words), bool)
    chosen: list[np.ndarray] = []
    for word in random.permutation(len(words)):
        for size in range(int(drawn[word]), 0, -1):
            run = words[word : word + size]
            if taken[word : word + size].any() or len(run) < size or sum(map(len, run)) > budget:
                continue
            taken[word : word + size] = True
            chosen += run
            budget -= sum(map(len, run))
            break
        if not budget:
            break
    if not chosen and len(places):  # every word is longer than the budget: part of one
        chosen = [words[int(random.integers(len(words)))][:budget]]
    return np.sort(np.concatenate(chosen)) if chosen else places[:0]


def _fit(
    first: np.ndarray, second: np.ndarray, room: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Cuts the longer of two texts, then both, until they fit; tokens go from the front or the end at random."""
    shorter = min(len(first), len(second), room // 2)
    if len(first) <= len(second):
        lengths = min(len(first), shorter), min(len(second), room - shorter)
    else:
        lengths = min(len(first), room - shorter), min(len(second), shorter)
    cut = []
    for text, length in zip((first, second), lengths):
        begin = int(random.binomial(len(text) - length, 0.5))
        cut.append(text[begin : begin + length])
    return cut[0], cut[1]


def _cut(store: TokenStore, ids: np.ndarray, ends: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Spans of whole sentences, int64 (N, 2) into the tokens, and the number of each one's document.

    A sentence belongs to the span that the place of its start in the document, divided by `room`, tells; so a span is
    about as long as a sample. Sentences longer than that are cut.
    """
    spans, documents = [], []
    for number, document in enumerate(ids):
        begin, end = int(store.offsets[document]), int(store.offsets[document + 1])
        if end - begin < 2:
            continue
        tokens = store.tokens[begin:end]
        if int(tokens.max()) >= len(ends):
            raise ValueError(
                f"token id {int(tokens.max())} in document {document} is outside the vocabulary of {len(ends)} tokens: "
                "the store was made with another tokenizer"
            )
        starts = np.append(0, np.flatnonzero(ends[tokens[:-1]]) + 1)
        group = starts // room
        first = starts[np.append(True, group[1:] != group[:-1])]
        bounds = np.append(first, end - begin)
        long = np.diff(bounds) > 2 * room
        if long.any():
            more = [np.arange(a + room, b - 1, room) for a, b in zip(bounds[:-1][long], bounds[1:][long])]
            bounds = np.unique(np.concatenate([bounds, *more]))
        pairs = np.stack([bounds[:-1], bounds[1:]], 1)
        pairs = pairs[pairs[:, 1] - pairs[:, 0] >= 2] + begin
        spans.append(pairs)
        documents.append(np.full(len(pairs), number))
    if not spans:
        return np.zeros((0, 2), np.int64), np.zeros(0, np.int64)
    return np.concatenate(spans), np.concatenate(documents)
