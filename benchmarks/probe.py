"""Time and peak memory of the L1 probe over its nine C, against plain scikit-learn with the same solver.

Run `python -m bigbatch.benchmarks.probe` (2,000 texts, 512 units; `--rows 25000 --units 4096` is IMDB with the published
model, for which the promise is a ratio of at most 1.1 in both). The reference is the loop that one would write: fit every
C on the features as they are (float32), score it on validation data, keep the best.

Each side runs in processes of its own, in turns, so that a busy moment hits both and peaks are not mixed up; the best time
and the lowest peak of each count. What a process holds before it fits, the features among it, is in the peak of both.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

from ..sentiment.probe import PUBLISHED_CS, SentimentProbe, logistic_regression


def make_features(rows: int, units: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features of which a tenth carry the label, float32, shape (rows, units); and labels 0 and 1."""
    generator = np.random.default_rng(seed)
    y = generator.integers(2, size=rows)
    X = generator.standard_normal((rows, units), dtype=np.float32)
    X[:, : max(units // 10, 1)] += 0.05 * (2 * y - 1)[:, None]
    return X, y


def fit_plain(X: np.ndarray, y: np.ndarray, X_val: np.ndarray, y_val: np.ndarray) -> tuple[float, float]:
    """scikit-learn alone: the first C of best validation accuracy, and that accuracy."""
    best = (-1.0, 0.0)
    for C in PUBLISHED_CS:
        model = logistic_regression(l1=True, C=C, solver="liblinear", random_state=42, max_iter=1000).fit(X, y)
        accuracy = float(model.score(X_val, y_val))
        best = max(best, (accuracy, C), key=lambda pair: pair[0])
    return best[1], best[0]


def fit_ours(X: np.ndarray, y: np.ndarray, X_val: np.ndarray, y_val: np.ndarray) -> tuple[float, float]:
    """`SentimentProbe`: its C and validation accuracy."""
    probe = SentimentProbe().fit(X, y, X_val, y_val)
    return probe.C_, max(probe.validation_accuracy_)


SIDES = {"scikit-learn": fit_plain, "SentimentProbe": fit_ours}


def measure(side: str, rows: int, units: int) -> dict[str, float]:
    """Fits in this process: seconds, peak in MB, and what was found."""
    X, y = make_features(rows + rows // 10, units)
    parts = X[:rows], y[:rows], X[rows:], y[rows:]
    start = time.perf_counter()
    C, accuracy = SIDES[side](*parts)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "peak_mb": peak, "C": C, "accuracy": accuracy}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", type=int, default=2000, help="training texts; a tenth as many validate (default: 2000)"
    )
    parser.add_argument("--units", type=int, default=512, help="features (default: 512)")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each side (default: 3)")
    parser.add_argument("--side", choices=tuple(SIDES), help="measure one side in this process, print JSON")
    args = parser.parse_args(argv)
    if args.side:
        print(json.dumps(measure(args.side, args.rows, args.units)))
        return 0
    size = ["--rows", str(args.rows), "--units", str(args.units)]
    best: dict[str, dict[str, float]] = {}
    for _ in range(args.repeats):
        for side in SIDES:
            command = [sys.executable, "-m", "bigbatch.benchmarks.probe", *size, "--side", side]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            known = best.setdefault(side, found)
            for key in ("seconds", "peak_mb"):
                known[key] = min(known[key], found[key])
    print(f"{args.rows:,} texts, {args.units:,} units, {len(PUBLISHED_CS)} C, best of {args.repeats}")
    print(f"{'':16}{'seconds':>10}{'peak MB':>10}{'C':>8}{'accuracy':>10}")
    for side, row in best.items():
        print(f"{side:16}{row['seconds']:10.2f}{row['peak_mb']:10.0f}{row['C']:8.4g}{row['accuracy']:10.4f}")
    plain, ours = best["scikit-learn"], best["SentimentProbe"]
    print(f"{'ratio':16}{ours['seconds'] / plain['seconds']:10.2f}{ours['peak_mb'] / plain['peak_mb']:10.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
