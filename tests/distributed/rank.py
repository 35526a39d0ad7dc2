"""What one rank of a distributed test executes: joins a gloo group, calls a function of a test module, answers.

Run by path with `MODULE, FUNCTION, RANK, WORLD, RENDEZVOUS, ARGUMENTS, ANSWER` as globals (see conftest.py). Answers are
JSON. It is no test module itself.
"""

from __future__ import annotations

import importlib.util
import traceback
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

globals_: dict[str, Any] = globals()


def main(module_path: str, function: str, rank: int, world: int, rendezvous: str, arguments: dict, answer: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    try:
        spec = importlib.util.spec_from_file_location("module_of_ranks", module_path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        answer.send(("ok", getattr(module, function)(rank, world, **arguments)))
    except BaseException:
        answer.send(("error", traceback.format_exc()))
    finally:
        dist.destroy_process_group()


main(*(globals_[name] for name in ("MODULE", "FUNCTION", "RANK", "WORLD", "RENDEZVOUS", "ARGUMENTS", "ANSWER")))
