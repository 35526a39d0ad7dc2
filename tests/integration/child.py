"""`bigbatch ARGV` in a process of its own, forked from a server that has torch imported (see conftest.py).

Run by path with `ARGV, OUTPUT, HOOK` as globals: output and errors go to files, HOOK is executed first, so that a test can
make a save fail or kill the process at a chosen place. It is no test module itself.
"""

from __future__ import annotations

import os
import sys
from typing import Any

globals_: dict[str, Any] = globals()
argv, output, hook = (globals_[name] for name in ("ARGV", "OUTPUT", "HOOK"))
for number, name in ((1, "stdout"), (2, "stderr")):
    descriptor = os.open(f"{output}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, number)

import torch  # noqa: E402

torch.set_num_threads(1)
exec(hook)

from bigbatch.scripts.cli import main  # noqa: E402

status = main(argv)
sys.stdout.flush()
sys.stderr.flush()
sys.exit(status)
