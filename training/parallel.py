"""How ranks share a step: plain, DDP with a chosen gradient exchange, or FSDP2. The loop sees one interface.

All of it is PyTorch's. What is added is the exchange of gradients in fewer bits (`fp16/exchange.py`) and that the policy's
wrapper is what gets wrapped, so that DDP and FSDP2 see the fp32 masters only.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """What gradients travel as: `auto` decided by the precision."""
    if config.grad_exchange == "auto":
        return "fp16" if precision == "fp16" and config.strategy == "ddp" else "fp32"
    return config.grad_exchange


class Parallel:
    """The model of one rank, wrapped.

    Args:
        policy: the model under its precision policy.
        config: strategy and exchange.
        ranks: this process.
        precision: resolved.
        settling_loss: a number that depends on every trained parameter of the module it is given.
        measure: sum up the squared norm of this rank's own gradients (`local_square_sum`); only with DDP.

    Attributes:
        module: what is called in the forward pass.
        policy: the policy, for evaluation; under FSDP2 the same as `module`.
    """

    def __init__(
        self,
        policy: PrecisionPolicy,
        config: ParallelConfig,
        ranks: Ranks,
        precision: str,
        settling_loss: Callable[[nn.Module], Tensor],
        measure: bool = False,
    ) -> None:
        self.policy, self.exchange = policy, Exchange(measure=measure)
        self.module: nn.Module = policy
        self._powersgd: Any = None
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
            self._powersgd = _register_powersgd(self.module, config.powersgd_rank)
        elif name != "fp32" or measure:
            self.exchange.dtype = EXCHANGE_DTYPES[name]
            self.module.register_comm_hook(self.exchange, exchange_hook)
        self._settle(settling_loss)

    def _settle(self, settling_loss: Callable[[nn.Module], Tensor]) -> None:
        """One pass on nothing, so that DDP has its final buckets before the first real step.

        After its first backward pass DDP cuts the buckets anew, in the order in which gradients came. The order of a sum
        over three ranks or more depends on the place in the bucket, so without this the first step after every start would
        be rounded unlike the same step of a run that was never stopped.
        """
        settling_loss(self.module).backward()
        self.module.zero_grad(set_to_none=True)
        self.exchange.take_square_sum()

    def after_overflow(self) -> None:
        """Forgets PowerSGD's error feedback, which has taken in the gradient that was not finite."""
        if self._powersgd is not None:
            for memory in ("error_dict", "p_memory_dict", "q_memory_dict"):
                getattr(self._powersgd, memory).clear()

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


def _register_powersgd(module: DistributedDataParallel, rank: int) -> Any:
    """Low-rank gradient exchange with error feedback; returns its state.

    The feedback is not in checkpoints: a resumed run starts with none, and with whole gradients for ten steps.

    Source: Vogels et al. 2019 (arXiv 1905.13727), torch.distributed.algorithms.ddp_comm_hooks.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(
        None,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=10,
        orthogonalization_epsilon=1e-8,  # pyright: ignore[reportArgumentType]
    )
    module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return state


def whole(tensors: dict[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """Sharded tensors gathered, one after the other (a collective: every rank calls it); plain ones as they are.

    Args:
        tensors: by name, in the same order on every rank.
        keep: whether this rank wants them; on the others each is dropped as soon as it is gathered.
    """
    gathered = {}
    for name, tensor in tensors.items():
        full = tensor.full_tensor().cpu() if is_sharded(tensor) else tensor  # pyright: ignore[reportAttributeAccessIssue]
        if keep:
            gathered[name] = full
    return gathered
