"""Optimizers over the fp32 parameters: Adam and SGD are torch's, LAMB, LARS and LARC are here.

All of them keep fp32 state, step over all tensors at once (foreach or fused), and leave biases, norms and weight-norm
gains (everything of one dimension) without decay and without a trust ratio: shrinking a gain fights the weight norm it
belongs to. Parameters sharded by FSDP2 are stepped shard by shard; their norms are summed over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..fp16 import apex
from ..fp16.grads import is_sharded, local_part
from .config import OptimConfig

Groups = list[dict[str, Any]]


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """The optimizer of `config.kind`, for each depth with two groups: matrices (decayed, adapted) and the rest.

    Args:
        model: its parameters that require gradients are optimised; where `config.layer_lr_decay` is below 1, its
            `parameter_depth(name)` says how far below the output each lies.
        config: kind and settings.

    Raises:
        ValueError: NVIDIA Apex was asked for by name and is not there, or a model without depths.

    Source: rates that fall from layer to layer, Howard and Ruder 2018 (arXiv 1801.06146), section 3.2.
    """
    groups: Groups = []
    for scale, parameters in _by_rate(model, config.layer_lr_decay):
        for matrices in (True, False):
            group = {"weight_decay": config.weight_decay if matrices else 0.0, "adapt": matrices, "lr_scale": scale}
            groups.append({"params": [p for p in parameters if (p.dim() > 1) == matrices], **group})
    if use_apex(config):
        return apex.build_optimizer(groups, config)
    betas = (config.beta1, config.beta2)
    match config.kind:
        case "adamw":
            optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True)
        case "lamb":
            optimizer = LAMB(groups, config.lr, betas, config.eps, config.lamb_prenorm, config.max_trust_ratio)
        case "lars":
            optimizer = LARS(groups, config.lr, config.momentum, config.trust_coefficient, config.eps)
        case _:
            decay = [group["weight_decay"] for group in groups]
            if config.larc:  # the decay belongs under the trust ratio, so the hook adds it
                groups = [{**group, "weight_decay": 0.0} for group in groups]
            if config.kind == "adam":
                optimizer = torch.optim.Adam(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True)
            else:
                optimizer = torch.optim.SGD(
                    groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, foreach=True
                )
            if config.larc:
                optimizer.register_step_pre_hook(larc_hook(decay, config.trust_coefficient, config.eps))
    return optimizer


def _by_rate(model: nn.Module, decay: float) -> list[tuple[float, list[nn.Parameter]]]:
    """Trained parameters by their fraction of the learning rate, the fastest first."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if decay == 1:
        return [(1.0, [p for _, p in trained])]
    if not hasattr(model, "parameter_depth"):
        raise ValueError("--optim.layer_lr_decay is for fine-tuning: this model's layers all learn at one rate")
    depths = [model.parameter_depth(name) for name, _ in trained]  # pyright: ignore[reportCallIssue]
    return [(decay**depth, [p for (_, p), d in zip(trained, depths) if d == depth]) for depth in sorted(set(depths))]


def use_apex(config: OptimConfig) -> bool:
    """Whether NVIDIA Apex runs the step.

    Raises:
        ValueError: it was asked for by name and cannot.
    """
    if config.backend == "torch":
        return False
    reason = apex.why_not(config)
    if reason and config.backend == "apex":
        raise ValueError(f"--optim.backend apex: {reason}; use --optim.backend torch")
    return reason is None and config.kind == "lamb" if config.backend == "auto" else True


def tensor_norms(tensors: Sequence[Tensor]) -> Tensor:
    """2-norm of each tensor, fp32 (n,); over all ranks where they are sharded."""
    return _norms([local_part(t) for t in tensors], bool(tensors) and is_sharded(tensors[0]))


def _norms(parts: Sequence[Tensor], sharded: bool) -> Tensor:
    norms = torch.stack(torch._foreach_norm(parts))  # pyright: ignore
    if sharded:
        squares = norms.square()
        dist.all_reduce(squares)
        norms = squares.sqrt()
    return norms


def trust_ratios(weights: Tensor, updates: Tensor, coefficient: float = 1.0) -> Tensor:
    """coefficient * weight norm / update norm, and 1 where either is 0: (n,) fp32."""
    usable = (weights > 0) & (updates > 0)
    return torch.where(usable, coefficient * weights / updates.clamp_min(torch.finfo(torch.float32).tiny), 1.0)


class _ForeachOptimizer(torch.optim.Optimizer):
    """What LAMB and LARS share: groups with gradients, state made at the first step."""

    def _states(self, params: list[Tensor], *entries: str) -> list[list[Tensor]]:
        for parameter in params:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                state.update({entry: torch.zeros_like(parameter) for entry in entries})
        torch._foreach_add_([self.state[p]["step"] for p in params], 1.0)  # pyright: ignore[reportPrivateImportUsage]
        return [[local_part(self.state[p][entry]) for p in params] for entry in entries]

    def _groups(self) -> Iterable[tuple[dict[str, Any], list[Tensor]]]:
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                yield group, params


class LAMB(_ForeachOptimizer):
    """Adam's step of each matrix, rescaled to the norm of the matrix.

    m and v are Adam's moments with bias correction, u = m / (sqrt(v) + eps) + weight_decay * w, and
    w <- w - lr * |w| / |u| * u. The trust ratio |w| / |u| is 1 where either norm is 0 and in groups with `adapt` false.

    Args:
        params: parameters or groups; `weight_decay` and `adapt` (default true) belong to the group.
        lr: learning rate.
        betas: decay of the two moments.
        eps: added to the root of the second moment.
        prenorm: divide all gradients by their common 2-norm first (NVLAMB).
        max_trust_ratio: upper limit of the ratio; 0 for none.

    Source: You et al. 2020 (arXiv 1904.00962), algorithm 2; pre-normalisation as in NVLAMB (NVIDIA, 2019).
    """

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6,
        prenorm: bool = False, max_trust_ratio: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "adapt": True})
        self.prenorm, self.max_trust_ratio = prenorm, max_trust_ratio

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update of all parameters that have a gradient."""
        inverse_norm = 1.0
        if self.prenorm:
            grads = [p.grad for _, params in self._groups() for p in params]
            norm = torch.linalg.vector_norm(tensor_norms(grads)) if grads else torch.ones(())  # pyright: ignore
            inverse_norm = 1.0 / float(norm) if norm > 0 else 1.0
        for group, params in self._groups():
            moment, square = self._states(params, "exp_avg", "exp_avg_sq")
            weights, grads = [local_part(p) for p in params], [local_part(p.grad) for p in params]  # pyright: ignore
            if inverse_norm != 1.0:
                grads = torch._foreach_mul(grads, inverse_norm)  # pyright: ignore[reportPrivateImportUsage]
            (beta1, beta2), step = group["betas"], float(self.state[params[0]]["step"])
            torch._foreach_lerp_(moment, grads, 1.0 - beta1)  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_mul_(square, beta2)  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_addcmul_(square, grads, grads, 1.0 - beta2)  # pyright: ignore[reportPrivateImportUsage]
            root = torch._foreach_sqrt(square)  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_div_(root, (1.0 - beta2**step) ** 0.5)  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_add_(root, group["eps"])  # pyright: ignore[reportPrivateImportUsage]
            update = torch._foreach_div(moment, 1.0 - beta1**step)  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_div_(update, root)  # pyright: ignore[reportPrivateImportUsage]
            if group["weight_decay"]:
                torch._foreach_add_(update, weights, alpha=group["weight_decay"])  # pyright: ignore
            if group["adapt"]:
                norms = tensor_norms(params), _norms(update, is_sharded(params[0]))
                ratios = trust_ratios(*norms)
                if self.max_trust_ratio:
                    ratios = ratios.clamp_max(self.max_trust_ratio)
                torch._foreach_mul_(update, list(ratios.unbind()))  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_add_(weights, update, alpha=-group["lr"])  # pyright: ignore[reportPrivateImportUsage]


class LARS(_ForeachOptimizer):
    """Momentum SGD whose rate for each matrix is proportional to weight norm over gradient norm.

    With d = weight_decay: local = trust_coefficient * |w| / (|g| + d * |w| + eps), v <- momentum * v + lr * local * (g + d * w),
    w <- w - v. In groups with `adapt` false local is 1.

    Source: You, Gitman, Ginsburg 2017 (arXiv 1708.03888), algorithm 1.
    """

    def __init__(
        self, params: Any, lr: float, momentum: float = 0.9, trust_coefficient: float = 1e-3, eps: float = 1e-8
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": 0.0, "adapt": True})
        self.trust_coefficient, self.eps = trust_coefficient, eps

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update of all parameters that have a gradient."""
        for group, params in self._groups():
            (velocity,) = self._states(params, "momentum_buffer")
            weights, grads = [local_part(p) for p in params], [local_part(p.grad) for p in params]  # pyright: ignore
            decay = group["weight_decay"]
            update = torch._foreach_add(grads, weights, alpha=decay)  # pyright: ignore[reportPrivateImportUsage]
            if group["adapt"]:
                local = _local_rates(params, decay, self.trust_coefficient, self.eps)
                torch._foreach_mul_(update, list(local.unbind()))  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_mul_(velocity, group["momentum"])  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_add_(velocity, update, alpha=group["lr"])  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_sub_(weights, velocity)  # pyright: ignore[reportPrivateImportUsage]


def larc_hook(decay: list[float], trust_coefficient: float, eps: float) -> Callable[..., None]:
    """A step pre-hook that scales gradients so that the rate of each matrix is at most its trust ratio.

    g <- min(local / lr, 1) * (g + decay * w), with `local` as in LARS: the optimizer's own lr then caps the local rate.

    Args:
        decay: weight decay of each group, which the optimizer itself must not apply.
        trust_coefficient: as in LARS.
        eps: added to the denominator.

    Source: LARC as published with NVIDIA Apex (clipping mode).
    """

    @torch.no_grad()
    def hook(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group, group_decay in zip(optimizer.param_groups, decay):
            params = [p for p in group["params"] if p.grad is not None]
            if not params or not group["adapt"]:
                continue
            factor = (_local_rates(params, group_decay, trust_coefficient, eps) / group["lr"]).clamp_max(1.0)
            weights, grads = [local_part(p) for p in params], [local_part(p.grad) for p in params]
            torch._foreach_add_(grads, weights, alpha=group_decay)  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_mul_(grads, list(factor.unbind()))  # pyright: ignore[reportPrivateImportUsage]

    return hook


def _local_rates(params: list[Tensor], decay: float, coefficient: float, eps: float) -> Tensor:
    """trust_coefficient * |w| / (|g| + decay * |w| + eps), and 1 where w or g is 0: (n,)."""
    weights, grads = tensor_norms(params), tensor_norms([p.grad for p in params])  # pyright: ignore
    return torch.where((weights > 0) & (grads > 0), coefficient * weights / (grads + decay * weights + eps), 1.0)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Sets the rate; a group with `lr_scale` learns at this fraction of it."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """State as `{entry}.{parameter name}`: readable by name, whatever the order of the parameters.

    A step counter that an optimizer keeps in its groups (NVIDIA Apex) is written for each parameter of the group.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    tensors = {
        f"{entry}.{names[parameter]}": value
        for parameter, state in optimizer.state.items()
        for entry, value in state.items()
        if isinstance(value, Tensor)  # SGD without momentum holds None
    }
    for group in optimizer.param_groups:
        if "step" in group:
            step = torch.tensor(float(group["step"]))
            tensors |= {f"step.{names[parameter]}": step.clone() for parameter in group["params"]}
    return tensors


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """The reverse of `optimizer_tensors`.

    Raises:
        ValueError: if a tensor belongs to no parameter of the model.
    """
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        entry, name = key.split(".", 1)
        if name not in parameters:
            raise ValueError(
                f"the checkpoint's optimizer state names the parameter {name!r}, which this model does not have"
            )
        parameter = parameters[name]
        group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
        if entry == "step" and ("step" in group or apex.owns(optimizer)):
            group["step"] = int(value)
        elif entry == "step":  # a fused kernel reads its counter on the device; other optimizers keep it on the CPU
            device = parameter.device if group.get("fused") or group.get("capturable") else "cpu"
            optimizer.state[parameter][entry] = value.to(device, copy=True)
        else:
            optimizer.state[parameter][entry] = _like(value, parameter)


def _like(value: Tensor, parameter: Tensor) -> Tensor:
    """A full tensor as the parameter is: on its device, and sharded as it is."""
    value = value.to(parameter.device)
    if not is_sharded(parameter):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, parameter.device_mesh, parameter.placements)  # pyright: ignore
