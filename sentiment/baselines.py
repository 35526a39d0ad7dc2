"""What a sentiment result has to beat: always the most frequent class, and TF-IDF with logistic regression.

Both see exactly the texts and splits that the probe sees; the second one chooses its C on validation data too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from ..data.cleaning import clean_review
from .checks import check_labels
from .probe import logistic_regression

logger = logging.getLogger(__name__)

TFIDF_CS = tuple(4.0**power for power in range(-1, 6))
_WORD = r"(?u)\b\w[\w'’]*"  # keeps one-letter words and "isn't" whole, unlike scikit-learn's default


def majority_class(y: np.ndarray) -> int:
    """The most frequent training label; of equally frequent ones the lowest."""
    classes, counts = np.unique(y, return_counts=True)
    return int(classes[counts.argmax()])


@dataclass(frozen=True)
class TfidfBaseline:
    """TF-IDF of words and word pairs (sublinear tf, lower case) with L2 logistic regression.

    Attributes:
        C: The one chosen on validation; of equally good ones the smallest.
        num_features: Words and pairs seen in training.
        validation_accuracy: At that C.
    """

    vectorizer: TfidfVectorizer
    classifier: LogisticRegression | OneVsRestClassifier
    C: float
    num_features: int
    validation_accuracy: float

    @classmethod
    def fit(
        cls,
        texts: Sequence[str],
        y: np.ndarray,
        val_texts: Sequence[str],
        y_val: np.ndarray,
        Cs: Sequence[float] = TFIDF_CS,
        seed: int = 42,
    ) -> TfidfBaseline:
        """Fits on the training texts for every C and keeps the best on validation.

        Raises:
            ValueError: Labels of one class, a validation set that lacks a class, or texts without any word.
        """
        y = check_labels(y, "training")
        y_val = check_labels(y_val, "validation", np.unique(y))
        vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=_WORD)
        try:
            X = vectorizer.fit_transform(_words(texts))
        except ValueError as error:  # "empty vocabulary"
            raise ValueError(f"the training texts hold no words for the TF-IDF baseline ({error})") from None
        X_val = vectorizer.transform(_words(val_texts))
        best = None
        for C in sorted(Cs):
            classifier = logistic_regression(l1=False, C=C, solver="liblinear", random_state=seed, max_iter=1000)
            if len(np.unique(y)) > 2:
                classifier = OneVsRestClassifier(classifier)
            accuracy = float(np.mean(classifier.fit(X, y).predict(X_val) == y_val))
            if best is None or accuracy > best.validation_accuracy:
                best = cls(vectorizer, classifier, float(C), X.shape[1], accuracy)
        assert best is not None, "an empty grid"
        if best.C in (min(Cs), max(Cs)):
            logger.info("the TF-IDF baseline chose C = %g at the edge of its grid", best.C)
        return best

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """Labels, shape (n,)."""
        return np.asarray(self.classifier.predict(self.vectorizer.transform(_words(texts))))


def _words(texts: Sequence[str]) -> list[str]:
    """The same cleaning as the byte model's, so that neither side sees entities that the other does not."""
    return [clean_review(text).decode("utf-8", errors="replace") for text in texts]
