"""Finding NVIDIA Apex, with stand-ins for what only a GPU machine has."""

from __future__ import annotations

import importlib.machinery
import sys
import types

import pytest
import torch
from bigbatch.fp16 import apex
from bigbatch.training.config import OptimConfig
from bigbatch.training.optimizers import build_optimizer, load_optimizer_tensors, optimizer_tensors
from torch import nn


class FusedLAMB(torch.optim.SGD):
    """Counts steps in its groups as Apex's optimizers do."""

    __module__ = "apex.optimizers.fused_lamb"

    def __init__(self, groups, lr, betas, eps, max_grad_norm) -> None:
        assert max_grad_norm > 1e20 and betas == (0.9, 0.999)
        super().__init__(groups, lr=lr, momentum=0.9)

    def step(self, closure=None) -> None:  # pyright: ignore
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
        super().step()


@pytest.fixture
def fake_apex(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that look like an Apex with its optimizer kernels, but without its norms, on a machine with CUDA."""
    for name in ("apex", "apex.optimizers", "amp_C"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["apex.optimizers"].FusedLAMB = FusedLAMB  # pyright: ignore
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


LAMB = OptimConfig(kind="lamb", weight_decay=0.1, backend="auto")


def test_without_cuda_or_apex_nothing_is_there() -> None:
    assert apex.available() == [] and "apex" not in sys.modules
    assert apex.why_not(LAMB) == "it needs a CUDA device"


def test_an_unrelated_package_of_that_name_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("apex")
    module.__spec__ = importlib.machinery.ModuleSpec("apex", None)
    monkeypatch.setitem(sys.modules, "apex", module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    reason = apex.why_not(LAMB)
    assert reason is not None and "its extension module amp_C is not installed" in reason


def test_what_is_there_is_found_by_its_extension_module(fake_apex: None) -> None:
    assert apex.available() == ["FusedAdam", "FusedLAMB", "FusedMixedPrecisionLamb", "FusedSGD"]
    assert not apex.is_available("layer_norm")


@pytest.mark.parametrize(
    "config, reason",
    [
        (OptimConfig(kind="lars"), "it has no lars"),
        (OptimConfig(kind="lamb"), "its LAMB adapts only what is decayed"),
        (OptimConfig(kind="lamb", weight_decay=0.1, lamb_prenorm=True), "clips where pre-normalisation divides"),
        (OptimConfig(kind="sgd", larc=True), "LARC is a hook on torch's optimizers"),
    ],
)
def test_what_it_would_do_otherwise_it_is_not_asked_to_do(fake_apex: None, config: OptimConfig, reason: str) -> None:
    found = apex.why_not(config)
    assert found is not None and reason in found


def test_its_step_counter_survives_a_checkpoint(fake_apex: None) -> None:
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    optimizers = [build_optimizer(module, LAMB) for module in (one, other)]
    assert type(optimizers[0]).__name__ == "FusedLAMB"
    for _ in range(2):
        one(torch.ones(1, 3)).sum().backward()
        optimizers[0].step()
    other.load_state_dict(one.state_dict())
    load_optimizer_tensors(optimizers[1], other, optimizer_tensors(optimizers[0], one))
    assert [group["step"] for group in optimizers[1].param_groups] == [2, 2]
    buffers = [[state["momentum_buffer"] for state in o.state.values()] for o in optimizers]
    assert all(map(torch.equal, *buffers)) and len(buffers[0]) == 2


def test_a_class_that_cannot_be_built_says_how_to_get_one_that_can(
    fake_apex: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(sys.modules["apex.optimizers"], "FusedLAMB", broken)
    with pytest.raises(ValueError, match=r"FusedLAMB cannot be built \(no kernel image\): .*--optim.backend torch"):
        build_optimizer(nn.Linear(2, 2), LAMB)
