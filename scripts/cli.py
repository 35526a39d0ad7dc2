"""The command `bigbatch`: a table of commands, each a thin module that is imported when it is called.

Errors that a user can cause (ValueError, OSError) end in one line and exit status 2; BIGBATCH_DEBUG=1 shows the
traceback as well. Options may be written with dashes or underscores.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import signal
import sys
from typing import NoReturn

COMMANDS = {
    "demo": "the whole pipeline on a corpus it writes itself: train, transfer, report.html",
    "prepare": "turn CSV, JSONL, Parquet or text files into a token store",
    "train": "train a language model (mLSTM, LSTM or GPT), on one process or several",
    "evaluate": "bits per character of a trained model on held-out text",
    "transfer": "probe a trained model's features for sentiment, with intervals and baselines",
    "finetune": "fine-tune a trained model with a head on labelled texts, and score it",
    "classify": "label and probability for text, a file or standard input",
    "heatmap": "colour text character by character by the sentiment unit",
    "units": "which units carry sentiment, and which words move them",
    "generate": "write text, freely or with the sentiment unit held",
    "convert": "weights of OpenAI and NVIDIA into a model folder, and back",
    "publish": "a model and its probe as a folder to hand on",
    "figures": "draw published and own numbers; run the experiments behind a page of docs",
    "plan": "predict seconds, memory, cost and energy of a training run on a cluster",
    "sweep": "many runs from one file: grids, lists, ablations, several at a time",
    "results": "what run folders hold, as one table: CSV, Parquet or Markdown",
    "watch": "a live table of runs",
    "doctor": "versions, devices, threads, speed of this machine, and what is missing",
}


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "usage: bigbatch COMMAND [options]",
            "",
            "Mixed-precision, large-batch language modelling and its transfer to sentiment.",
            "",
            *lines,
            "",
            "bigbatch COMMAND --help explains a command; start with: bigbatch demo",
        ]
    )


def with_dashes(argv: list[str]) -> list[str]:
    """`--run_dir X` -> `--run-dir X`: option names only, never values, and nothing behind a bare `--`."""
    end = argv.index("--") if "--" in argv else len(argv)
    names = []
    for word in argv[:end]:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            word = "--" + name[2:].replace("_", "-") + equals + value
        names.append(word)
    return names + argv[end:]


def explain(error: ValueError | OSError) -> str:
    """The line for a user; an operating system's error that nobody has put into words gets its file and a remedy."""
    if not isinstance(error, OSError) or error.errno is None or error.filename is None:
        return str(error)
    remedies = {
        errno.EACCES: "choose a file or folder that you may use, or change its permissions",
        errno.EPERM: "choose a file or folder that you may use, or change its permissions",
        errno.EROFS: "choose another folder, on a disk that can be written",
        errno.ENOSPC: "free some space, or choose another disk",
        errno.EDQUOT: "free some space, or choose another disk",
        errno.ENAMETOOLONG: "choose a shorter name",
        errno.ENOTDIR: "a part of this path is a file: choose another folder",
        errno.EISDIR: "this is a folder: name a file in it",
        errno.ENOENT: "check the name, and that its folder exists",
    }
    remedy = remedies.get(error.errno)
    return f"{error.filename}: {os.strerror(error.errno).lower()}" + (f": {remedy}" if remedy else "")


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if argv[0] in ("--version", "version"):
        from bigbatch import __version__

        print(f"bigbatch {__version__}")
        return 0
    name = argv[0]
    if name not in COMMANDS:
        print(f"bigbatch: there is no command {name!r}; commands: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.WARNING)
    logging.getLogger("bigbatch").setLevel(logging.INFO)
    try:
        return importlib.import_module(f".{name}", "bigbatch.scripts").main(with_dashes(argv[1:])) or 0
    except (ValueError, OSError) as error:
        if os.environ.get("BIGBATCH_DEBUG"):
            raise
        if isinstance(error, BrokenPipeError):  # the reader of our output has gone: `bigbatch classify ... | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        print(f"bigbatch {name}: {' '.join(explain(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"bigbatch {name}: interrupted", file=sys.stderr)
        return 130


def run() -> NoReturn:
    """The process `bigbatch`: runs one command and ends.

    A rank ends without the interpreter's clean-up: DDP keeps the process group alive after it is destroyed (torch 2.13), and
    a gloo thread that still drops its last piece of work then aborts the process, in about a third of the runs that fail
    right after their first exchange.
    """
    rank = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if rank:
        # Python's own handler waits for the next line of Python, which does not come while torch waits for another rank.
        # In training the loop has a handler of its own; before and after it there is nothing to save.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    else:
        # So that what a command leaves half-written is removed; in training the loop and the launcher take over.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    status = main()
    if rank:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    run()
