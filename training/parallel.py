"""How ranks share a step: plain, DDP with a chosen gradient exchange, or FSDP2. The loop sees one interface.

All of it is PyTorch's. What is added is the exchange of gradients in fewer bits (`fp16/exchange.py`) and that the policy's
wrapper is what gets wrapped, so that DDP and FSDP2 see the fp32 masters only.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..fp16.exchange import EXCHANGE_DTYPES, Exchange, exchange_hook
from ..fp16.grads import is_sharded
from ..fp16.policy import PrecisionPolicy
from .config import ParallelConfig
from .distributed import Ranks


def exchange_name(config: ParallelConfig, precision: str) -> str:
    """What gradients travel as: `auto` decided by the precision.

    Raises:
        ValueError: PowerSGD under a loss scale: its error feedback would carry an overflow on for ever.
    """
    name = config.grad_exchange
    if name == "auto":
        return "fp16" if precision == "fp16" and config.strategy == "ddp" else "fp32"
    if name == "powersgd" and precision in ("fp16", "amp"):
        raise ValueError(
            f"--parallel.grad_exchange powersgd does not go with --precision {precision}: an overflow would stay in its error "
            "feedback; use bf16, fp32, or another exchange"
        )
    return name


class Parallel:
    """The model of one rank, wrapped.

    Args:
        policy: the model under its precision policy.
        config: strategy and exchange.
        ranks: this process.
        precision: resolved.
        measure: sum up the squared norm of this rank's own gradients (`local_square_sum`); only with DDP.

    Attributes:
        module: what is called in the forward pass.
        policy: the policy, for evaluation; under FSDP2 the same as `module`.
    """

    def __init__(
        self, policy: PrecisionPolicy, config: ParallelConfig, ranks: Ranks, precision: str, measure: bool = False
    ) -> None:
        self.policy, self.exchange = policy, Exchange(measure=measure)
        self.module: nn.Module = policy
        name = exchange_name(config, precision)
        if ranks.world_size == 1:
            return
        if config.strategy == "fsdp":
            self.module = _shard(policy, ranks)
            return
        self.module = DistributedDataParallel(
            policy, gradient_as_bucket_view=True, bucket_cap_mb=config.bucket_mb, static_graph=config.static_graph
        )
        if name == "powersgd":
            _register_powersgd(self.module, config.powersgd_rank)
        elif name != "fp32" or measure:
            self.exchange.dtype = EXCHANGE_DTYPES[name]
            self.module.register_comm_hook(self.exchange, exchange_hook)

    @property
    def measures(self) -> bool:
        """Whether `exchange` sums up the squared norm of this rank's gradients."""
        return self.exchange.measure and isinstance(self.module, DistributedDataParallel)

    def accumulating(self, last: bool) -> AbstractContextManager[Any]:
        """Around the passes of one micro-batch: gradients are exchanged on the last one of a step only."""
        if isinstance(self.module, DistributedDataParallel):
            return nullcontext() if last else self.module.no_sync()
        if hasattr(self.module, "set_requires_gradient_sync"):
            self.module.set_requires_gradient_sync(last)  # pyright: ignore[reportCallIssue]
        return nullcontext()


def _shard(policy: PrecisionPolicy, ranks: Ranks) -> nn.Module:
    """FSDP2 over all ranks: parameters, gradients and optimizer state live in shards, whole only during a pass.

    The wrapper is one unit, because the policy casts all parameters together.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.world_size,), mesh_dim_names=("dp",))
    # Shards again after a forward pass too: validation would leave whole parameters behind, which no optimizer knows.
    return fully_shard(policy, mesh=mesh, reshard_after_forward=True)  # pyright: ignore[reportReturnType]


def _register_powersgd(module: DistributedDataParallel, rank: int) -> None:
    """Low-rank gradient exchange with error feedback. Its feedback is not in checkpoints: a resumed run starts it at zero.

    Source: Vogels et al. 2019 (arXiv 1905.13727), torch.distributed.algorithms.ddp_comm_hooks.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=10)
    module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def whole(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sharded tensors gathered (a collective: every rank calls it); plain ones as they are."""
    return {name: t.full_tensor() if is_sharded(t) else t for name, t in tensors.items()}  # pyright: ignore
