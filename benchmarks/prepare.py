"""Speed and memory of `bigbatch prepare`: MB/s of text per core and peak memory above the bare interpreter.

Run `python -m bigbatch.benchmarks.prepare` (0.25 GB; `--gigabytes 1`, or `--documents 10000000` for many short ones).
It writes reviews in the form of the Amazon files from a small vocabulary of its own, prepares them in fresh processes,
prints a table and deletes everything.

MB/s counts bytes after decompression, divided by CPU seconds of the whole process (user and system, all threads, start
of the interpreter left out), so that a second thread would gain nothing. Memory is the peak resident set of the process
less that of an interpreter which does nothing.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

VOCABULARY = """
the a this it i we my for with of and but was is were very quite really not never always battery screen handle box
cable strap manual price seller delivery story ending actor scene music sound picture colour paper chapter hero good
great bad poor fine cheap solid broken lovely dull boring funny slow fast bright dim heavy light easy hard again
after before because although when while so too more less most least every some any one two three years days hours
bought returned works worked stopped started looks looked feels felt reads played watched recommended arrived
expected
"""
WORDS = VOCABULARY.split()
# One review in eight holds these, as in the Amazon files.
RARE_WORDS = ("&amp;", "&#34;best&#34;", "<br />", "café")

_MEASURED = """
import resource, sys, time
before = time.process_time()
rss = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if len(sys.argv) > 1:
    wall = time.perf_counter()
    from bigbatch.data.config import DataConfig
    from bigbatch.data.files import SourceReport
    from bigbatch.data.prepare import prepare_store
    report = SourceReport()
    prepare_store(DataConfig(paths=[sys.argv[1]]), sys.argv[2], progress=False, report=report)
    assert 'torch' not in sys.modules and 'pandas' not in sys.modules
    print(report.text_bytes, time.process_time() - before, time.perf_counter() - wall, rss(), report.rows)
else:
    print(rss())
"""


def write_reviews(path: Path, num_bytes: int, words: int, seed: int = 0) -> None:
    """Writes about `num_bytes` of JSON lines with reviews of about `words` words; the same text comes round again."""
    random_word = random.Random(seed)
    lines = []
    for number in range(2000):
        length = max(1, int(words * random_word.expovariate(1.0)))
        text = " ".join(WORDS[int(random_word.random() * len(WORDS))] for _ in range(length))
        if number % 8 == 0:
            text += "".join(f" {word}, it said" for word in RARE_WORDS)
        review = {
            "reviewerID": f"A{number:013d}",
            "asin": f"B{number * 7919 % 10**9:09d}",
            "helpful": [number % 5, 5],
            "reviewText": text,
            "overall": float(1 + number % 5),
            "summary": " ".join(text.split()[:4]),
            "unixReviewTime": 1_300_000_000 + number * 86_400,
            "reviewTime": "01 31, 2014",
        }
        lines.append(json.dumps(review if words > 20 else {"text": text, "overall": review["overall"]}))
    chunk = ("\n".join(lines) + "\n").encode()
    with gzip.open(path, "wb", compresslevel=6) if path.suffix == ".gz" else path.open("wb") as file:
        for _ in range(max(1, num_bytes // len(chunk))):
            file.write(chunk)


def measure(source: Path | None, folder: Path) -> list[float]:
    """Runs one prepare (or, without a source, nothing) in a fresh interpreter and returns the numbers it printed."""
    arguments = [] if source is None else [str(source), str(folder / "store")]
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *arguments], check=True, stdout=subprocess.PIPE, text=True, cwd=folder
    )
    return [float(number) for number in done.stdout.split()]


def run(num_bytes: int, words: int, repeats: int, folder: Path) -> None:
    """Writes the files of one size, prepares them and prints two lines of the table."""
    (bare,) = measure(None, folder)
    for name in ("reviews.jsonl", "reviews.jsonl.gz"):
        path = folder / name
        write_reviews(path, num_bytes, words)
        runs = [measure(path, folder) for _ in range(repeats)]
        path.unlink()
        size, cpu, wall, _, rows = min(runs, key=lambda numbers: numbers[1])
        peak = max(numbers[3] for numbers in runs)
        print(
            f"{name:17} {size / 1e6:8.0f} {rows:12,.0f} {size / cpu / 1e6:12.0f} {size / wall / 1e6:12.0f} "
            f"{(peak - bare) / 1024:10.0f}",
            flush=True,
        )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=0.25, help="size of the JSONL text (default: %(default)s)")
    parser.add_argument("--documents", type=int, help="instead: this many documents of a few words")
    parser.add_argument(
        "--repeats", type=int, default=3, help="runs of which the fastest counts (default: %(default)s)"
    )
    parser.add_argument("--folder", type=Path, help="where the files go while it runs (default: the temporary folder)")
    args = parser.parse_args(argv)
    print(f"{'file':17} {'MB':>8} {'documents':>12} {'MB/CPU s':>12} {'MB/s wall':>12} {'MiB above':>10}")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        if args.documents:
            write_reviews(Path(folder) / "probe.jsonl", 1, 5)
            probe = (Path(folder) / "probe.jsonl").stat().st_size
            run(args.documents // 2000 * probe, 5, args.repeats, Path(folder))
        else:
            run(int(args.gigabytes * 1e9), 110, args.repeats, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
