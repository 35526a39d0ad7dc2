"""NVIDIA Apex as an optional backend: found by its compiled extension modules, never required, never named in metadata.

`import apex` succeeding proves nothing: the package `apex` on PyPI is an unrelated project, and an Apex without CUDA has
no kernels. What counts are the extension modules `amp_C` (optimizers) and `fused_layer_norm_cuda` (norms).
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

import torch

HOW_TO_INSTALL = "build it from NVIDIA/apex with APEX_CPP_EXT=1 APEX_CUDA_EXT=1, or use NVIDIA's PyTorch container"


@dataclass(frozen=True)
class Backend:
    """One class of Apex and the compiled module it needs."""

    module: str
    name: str
    extension: str


BACKENDS = {
    "adam": Backend("apex.optimizers", "FusedAdam", "amp_C"),
    "adamw": Backend("apex.optimizers", "FusedAdam", "amp_C"),
    "sgd": Backend("apex.optimizers", "FusedSGD", "amp_C"),
    "lamb": Backend("apex.optimizers", "FusedLAMB", "amp_C"),
    "mixed_precision_lamb": Backend("apex.optimizers", "FusedMixedPrecisionLamb", "amp_C"),
    "layer_norm": Backend("apex.normalization", "FusedLayerNorm", "fused_layer_norm_cuda"),
}


def _spec(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def is_available(kind: str) -> bool:
    """Whether Apex's kernel of this kind (a key of `BACKENDS`) can run here."""
    return torch.cuda.is_available() and _spec("apex") and _spec(BACKENDS[kind].extension)


def available() -> list[str]:
    """Names of the Apex classes that can run here; empty without CUDA or Apex."""
    return sorted({backend.name for kind, backend in BACKENDS.items() if is_available(kind)})


def load(kind: str) -> Any:
    """The Apex class of this kind. Construct it inside a try: it may still miss a kernel."""
    backend = BACKENDS[kind]
    return getattr(importlib.import_module(backend.module), backend.name)


def why_not(config: Any) -> str | None:
    """Why Apex cannot run this optimizer, or None if it can.

    Args:
        config: a `training.config.OptimConfig`.
    """
    if config.kind not in BACKENDS:
        return f"it has no {config.kind}"
    if config.larc:
        return "LARC is a hook on torch's optimizers"
    if not torch.cuda.is_available():
        return "it needs a CUDA device"
    if not is_available(config.kind):
        return f"its extension module {BACKENDS[config.kind].extension} is not installed ({HOW_TO_INSTALL})"
    if config.kind == "lamb" and (config.weight_decay == 0 or config.max_trust_ratio or config.lamb_prenorm):
        return (
            "its LAMB adapts only what is decayed, has no limit of the ratio, and clips where pre-normalisation divides"
        )
    return None


def build_optimizer(groups: list[dict[str, Any]], config: Any) -> torch.optim.Optimizer:
    """FusedAdam, FusedSGD or FusedLAMB with our settings. Call `why_not` first.

    Raises:
        ValueError: the class cannot be constructed although its extension was found.
    """
    groups = [{k: v for k, v in group.items() if k != "adapt"} for group in groups]
    options: dict[str, Any] = {"lr": config.lr}
    if config.kind == "sgd":
        options |= {"momentum": config.momentum, "nesterov": config.nesterov}
    else:
        options |= {"betas": (config.beta1, config.beta2), "eps": config.eps}
    if config.kind in ("adam", "adamw"):
        options["adam_w_mode"] = config.kind == "adamw"
    if config.kind == "lamb":
        options["max_grad_norm"] = 1e30  # the loop has clipped already
    try:
        return load(config.kind)(groups, **options)
    except (ImportError, RuntimeError, AttributeError) as error:
        raise ValueError(
            f"NVIDIA Apex's {BACKENDS[config.kind].name} cannot be built ({error}): {HOW_TO_INSTALL}, or use --optim.backend torch"
        ) from None


def owns(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer is one of Apex's, which count steps in their groups."""
    return type(optimizer).__module__.split(".")[0] == "apex"
