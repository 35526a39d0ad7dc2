"""The run folder: what is decided once before ranks start, and what each rank does with it.

`train` is the whole: it resolves the configuration, builds the token store if it is missing, starts ranks where there
are to be several, and runs the loop. A run is repeated, or gone on with, from its folder alone.
"""

from __future__ import annotations

import fcntl
import importlib.util
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import torch
import yaml

from ..data.demo_reviews import write_demo_corpus
from ..data.prepare import open_or_prepare
from ..data.splits import Splits, split_documents
from ..data.streams import OrderedStore
from ..data.token_store import TokenStore, store_exists
from ..fp16 import apex
from ..fp16.config import resolve_precision
from ..fp16.speed import SLOW, half_precision_slowdown
from ..models.transformer_config import BERTConfig, GPTConfig
from .batch_size import check_batch
from .checkpoint import check_resumable, checkpoint_dirs, find_checkpoint
from .config import TrainConfig, changed_keys, config_from_dict
from .distributed import Ranks, launch, launched_by_us, process_group, resolve_device, under_torchrun
from .engine import Engine, TrainResult
from .finetune import build_task, check_files
from .finetune_config import FinetuneConfig, finetune_from_dict
from .memory import check_memory
from .metrics import read_result, update_result
from .optimizers import use_apex
from .schedules import check_schedule, scaled_optim
from .tasks.base import Task
from .tasks.char_lm import CharLMTask
from .tasks.gpt import GPTTask
from .vocabulary import check_vocabulary

log = logging.getLogger(__name__)

RunConfig = TrainConfig | FinetuneConfig

EXIT_STOPPED = 143  # what a shell reports for a process ended by SIGTERM


def read_config(run_dir: Path | str) -> dict:
    """config.yaml of a run folder as a nested dictionary.

    Raises:
        ValueError: if the folder holds no configuration or an unreadable one.
    """
    path = Path(run_dir) / "config.yaml"
    if not path.is_file():
        raise ValueError(
            f"{run_dir} is not a run folder (it has no config.yaml): `bigbatch train --run-dir {run_dir}` makes one"
        )
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict) or not ("model" in config or "encoder" in config):
        raise ValueError(f"{path} is not the configuration of a run: mend it or choose another --run-dir")
    return config


def store_prefix(config: TrainConfig) -> Path:
    return Path(config.data.store) if config.data.store else Path(config.run_dir) / "data" / "corpus"


def prepare_run(config: RunConfig) -> RunConfig:
    """Makes the run folder ready; done by one process, before any rank starts.

    Returns:
        The configuration as stored: precision and device decided, paths absolute.

    Raises:
        ValueError: if the folder holds a run of another configuration, or the configuration cannot be run here.
        FileNotFoundError: if a data file does not exist.
    """
    config = settle_config(config)
    check_config(config, config.nproc)
    if isinstance(config, TrainConfig):
        build_store(config)
        open_store(config)
    else:
        check_files(config)
    write_config(config)
    return config


def settle_config(config: RunConfig) -> RunConfig:
    """Decides what was left open and compares the result with the run that the folder holds; writes nothing."""
    run_dir = Path(config.run_dir)
    stored = read_config(run_dir) if (run_dir / "config.yaml").is_file() else None
    if stored is not None and config.resume == "never":
        raise ValueError(f"{run_dir} holds a run already and --resume is never: choose another --run-dir")
    precision = config.precision
    if precision == "auto" and stored is not None:
        precision = stored["precision"]
    precision = resolve_precision(precision, resolve_device(config.device).type)
    # "never" was about starting in this folder; stored, it would forbid to go on from it.
    config = replace(config, precision=precision, resume="auto").absolute()  # pyright: ignore[reportArgumentType]
    if stored is not None and checkpoint_dirs(run_dir):
        # Through the dataclasses, so that an option that this version added counts as its default.
        differences = changed_keys(stored_config(stored).to_dict(), config.to_dict())
        if differences:
            raise ValueError(
                f"{run_dir} holds a run of another configuration ({'; '.join(differences)}): choose another --run-dir, or give "
                "the options it was started with"
            )
    return config


def stored_config(values: dict) -> RunConfig:
    """The configuration of a run folder, of whichever kind it is."""
    return finetune_from_dict(values) if "encoder" in values else config_from_dict(values)


def check_config(config: RunConfig, world_size: int) -> None:
    """Refuses what can only fail later, before data is read or ranks start.

    Raises:
        ValueError: one line.
    """
    check_resumable(Path(config.run_dir))
    check_batch(config.batch, world_size)
    if isinstance(config, TrainConfig):
        check_memory(config, world_size)
    scaled_optim(config.schedule, config.optim, config.batch.global_batch_size)
    use_apex(config.optim)
    if config.schedule.samples:  # counted in epochs, the length is known when the text is
        check_schedule(config.schedule, config.schedule.samples)
    if config.log.tensorboard and importlib.util.find_spec("tensorboardX") is None:
        raise ValueError("--log.tensorboard needs one more package: pip install 'bigbatch[log]'")
    start = config.init_from if isinstance(config, TrainConfig) else config.encoder
    if start and not checkpoint_dirs(Path(config.run_dir)):
        find_checkpoint(Path(start))
    accumulates = bool(config.batch.micro_batch_size) and config.batch.micro_batch_size < config.batch.global_batch_size
    ddp_measures = config.parallel.strategy == "ddp" and config.parallel.grad_exchange != "powersgd"
    if config.log.noise_scale and not (ddp_measures if world_size > 1 else accumulates):
        raise ValueError(
            "--log.noise_scale compares two batch sizes: use several ranks with ddp (and another exchange than powersgd), or "
            "accumulation on one rank (--batch.micro_batch_size)"
        )
    if config.device.startswith("cuda") or (config.device == "auto" and torch.cuda.is_available()):
        _check_cards(config.device, config.nproc)
    if config.parallel.strategy == "fsdp" and config.log.eval_lanes < world_size:
        raise ValueError(
            f"--log.eval_lanes is {config.log.eval_lanes}: under --parallel.strategy fsdp each of {world_size} ranks needs a lane"
        )


def _check_cards(device: str, nproc: int) -> None:
    cards = torch.cuda.device_count()
    if nproc > 1 and ":" in device:
        raise ValueError(f"--device {device} names one card for {nproc} ranks: write --device cuda, each takes its own")
    if nproc > cards:
        raise ValueError(
            f"--nproc {nproc}, but there are {cards} CUDA devices here: one rank needs one, or --device cpu"
        )


@contextmanager
def sole_user(run_dir: Path) -> Iterator[None]:
    """Holds the run folder's lock, which the kernel releases when this process ends, however it ends.

    A folder that was made for it and that the block leaves empty is removed again.

    Raises:
        ValueError: if another process trains in the folder.
    """
    created = [folder for folder in (run_dir, *run_dir.parents) if not folder.exists()]
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another process trains in {run_dir}: wait until it ends, stop it, or choose another --run-dir"
            ) from None
        except OSError as error:  # some network file systems have no locks
            log.debug("%s: not locked (%s)", run_dir, error)
        try:
            yield
        finally:
            if created and os.listdir(run_dir) == [".lock"]:
                (run_dir / ".lock").unlink()
                for folder in created:
                    with suppress(OSError):  # another run may have begun beside this one
                        folder.rmdir()


def write_config(config: RunConfig) -> None:
    run_dir = Path(config.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    partial = run_dir / ".config.yaml.partial"
    partial.write_text(yaml.safe_dump(config.to_dict(), sort_keys=False), encoding="utf-8")
    partial.replace(run_dir / "config.yaml")


def build_store(config: TrainConfig) -> None:
    """Builds the token store from the data files unless it is there and of these files."""
    prefix, data = store_prefix(config), config.data
    if not data.paths:  # a store alone was named
        return
    if data.paths == ["demo"]:
        if store_exists(prefix):
            return
        if data.store:  # the embedded corpus is only the default: whoever names a store means its text
            raise ValueError(
                f"there is no token store {prefix}: build it with `bigbatch prepare --data FILE --out {prefix}`, or name its "
                "text with --data.paths"
            )
        data = replace(data, paths=[str(write_demo_corpus(prefix.parent / "demo").lm)])
    # A store that the user named, or that checkpoints of this run belong to, is never built anew.
    rebuild = not data.store and not checkpoint_dirs(Path(config.run_dir))
    open_or_prepare(data, prefix, progress=config.log.progress, rebuild=rebuild)


def open_store(config: TrainConfig) -> TokenStore:
    """The token store of a run.

    Raises:
        ValueError: if it is missing, or holds other tokens than the model reads.
    """
    prefix = store_prefix(config)
    if not store_exists(prefix):
        raise ValueError(
            f"the token store {prefix} does not exist: build it with `bigbatch prepare`, once, before the ranks start"
        )
    store = TokenStore(prefix)
    if isinstance(config.model, GPTConfig | BERTConfig):
        check_vocabulary(config.model, store)
    elif store.dtype.name != "uint8":
        raise ValueError(
            f"the token store {prefix} holds {store.dtype.name} tokens, and this model reads bytes: build one of text with "
            "`bigbatch prepare`"
        )
    return store


def load_splits(config: TrainConfig) -> tuple[TokenStore, Splits]:
    """The token store of a run and its split into train, val and test.

    Raises:
        ValueError: if the store is missing, of other tokens, or too small to split.
    """
    store, data = open_store(config), config.data
    splits = split_documents(
        store, data.seed, data.val_fraction, data.test_fraction, data.min_heldout_bytes, data.num_shards,
        data.keep_duplicates_together,
    )  # fmt: skip
    return store, splits


def split_source(config: TrainConfig, split: str, data_hash: str = "") -> OrderedStore:
    """The bytes of one split of a run, in shuffled document order.

    Args:
        config: the run.
        split: train, val or test.
        data_hash: of the store that the model was trained on; empty for any.

    Raises:
        ValueError: the store is another one now: its held-out part may hold text that the model was trained on.
    """
    store, splits = load_splits(config)
    if data_hash not in ("", store.content_hash):
        raise ValueError(
            f"the token store {store_prefix(config)} is not the one that the model was trained on, so its held-out parts are not "
            "either: restore it, or score files of your own with --data"
        )
    return OrderedStore(store, getattr(splits, split))


def run_rank(config: RunConfig) -> TrainResult:
    """One rank's part: joins the group, trains, and on rank 0 records how it ended in result.json."""
    with process_group(config.device, config.parallel.timeout_seconds) as ranks:
        if not ranks.is_main:
            logging.getLogger("bigbatch").setLevel(logging.WARNING)
        if under_torchrun() and ranks.is_main and not (Path(config.run_dir) / "config.yaml").is_file():
            write_config(config)
        return _run_engine(config, ranks)


def _build_engine(config: RunConfig, ranks: Ranks) -> Engine:
    if isinstance(config, FinetuneConfig):
        return Engine(config, ranks, *build_task(config, ranks))
    store, splits = load_splits(config)
    return Engine(config, ranks, _pretraining_task(config, ranks, store, splits), store.content_hash)


def _pretraining_task(config: TrainConfig, ranks: Ranks, store: TokenStore, splits: Splits) -> Task:
    if isinstance(config.model, GPTConfig):
        return GPTTask(config, ranks, store, splits)
    return CharLMTask(config, ranks, OrderedStore(store, splits.train), OrderedStore(store, splits.val))


def _run_engine(config: RunConfig, ranks: Ranks) -> TrainResult:
    """Trains with an engine that is gone when this returns, before the process group is."""
    engine = _build_engine(config, ranks)
    done = read_result(config.run_dir).get("train")
    if done and engine.finished:
        if ranks.is_main:
            log.info(
                "%s is finished (%s samples): for another run choose another --run-dir", config.run_dir, done["samples"]
            )
        return TrainResult("finished", done["samples"], done["tokens"], None, done[f"best_{engine.task.metric}"])
    if ranks.is_main:
        _describe(engine, ranks)
    result = engine.run()
    if ranks.is_main:
        _record(config, engine, result)
    return result


def _describe(engine: Engine, ranks: Ranks) -> None:
    config, layout = engine.config, engine.layout
    parameters = sum(p.numel() for p in engine.model.parameters())
    ratio = half_precision_slowdown(config.precision, ranks.device.type)
    if ratio > SLOW:
        log.warning(
            "%s matrix products take %.0f times as long as fp32 on this %s: good for checking numerics, slow for training",
            config.precision, ratio, ranks.device.type,
        )  # fmt: skip
    log.info(
        "%s, %s parameters; %s on %s, %s of %s; %d rank(s); batch %d = %d x %d x %d (micro x ranks x accumulation) of %s; "
        "%s samples",
        engine.task.config_dict()["model"]["kind"], f"{parameters:,}", config.precision, ranks.device, config.optim.kind,
        "NVIDIA Apex" if apex.owns(engine.optimizer) else "PyTorch", ranks.world_size, layout.global_batch_size,
        layout.micro_batch_size, layout.data_parallel_size, layout.grad_accum_steps, engine.task.row_size(),
        f"{engine.total_samples:,}",
    )  # fmt: skip


def _record(config: RunConfig, engine: Engine, result: TrainResult) -> None:
    if result.status == "stopped":
        log.info("stopped at %s samples with a checkpoint: the same command goes on from there", f"{result.samples:,}")
        return
    assert result.val
    values = {
        "status": result.status, "samples": result.samples, "tokens": result.tokens, "val": result.val.to_dict(),
        f"best_{engine.task.metric}": result.best, "seconds": engine.trainer["seconds"],
        "skipped_steps": engine.scaler.skipped_steps,
    }  # fmt: skip
    update_result(config.run_dir, {"train": values})
    log.info("finished: validation %s", result.val)


def train(config: RunConfig) -> int:
    """Trains, on as many ranks as asked for; goes on where the run folder stopped.

    Returns:
        0 when the run is finished, 143 when a signal stopped it after a checkpoint, else the ranks' exit status.

    Raises:
        ValueError, OSError: with one line that says what the user can do.
    """
    if under_torchrun():
        config = settle_config(config)
        check_config(config, int(os.environ["WORLD_SIZE"]))
        # Where our own launcher is the parent, it holds the lock; under another one the first rank does.
        alone = os.environ["RANK"] == "0" and not launched_by_us()
        with sole_user(Path(config.run_dir)) if alone else nullcontext():
            return _train_rank(config)
    with sole_user(Path(config.run_dir)):
        config = prepare_run(config)
        if config.nproc > 1:
            command = "train" if isinstance(config, TrainConfig) else "finetune"
            return launch(config.nproc, [command, "--config", str(Path(config.run_dir) / "config.yaml")])
        return _train_rank(config)


def _train_rank(config: RunConfig) -> int:
    return 0 if run_rank(config).status == "finished" else EXIT_STOPPED
