"""The sequence op against stepping the cell with autograd: outputs, states and every gradient, by dtype."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from bigbatch.models import mlstm_cpu, mlstm_steps
from bigbatch.models import mlstm_scan as module
from bigbatch.models.mlstm import mlstm_cell
from bigbatch.models.mlstm_scan import mlstm_scan
from torch import Tensor

T, B, H, V = 9, 5, 8, 11


@pytest.fixture(params=["plain PyTorch", "compiled", pytest.param("Triton", marks=pytest.mark.slow)], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test runs on all paths; where a path does not take a dtype, plain PyTorch runs. Triton is interpreted on the CPU."""
    if request.param == "compiled":
        assert mlstm_cpu.usable(torch.zeros(1)), "a compiler is a requirement of the tests"
        return request.param
    monkeypatch.setattr(mlstm_cpu, "usable", lambda inputs: False)
    if request.param == "Triton":
        pytest.importorskip("triton", reason="pip install triton==3.7.1, as `make test-all` does")
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        from bigbatch.models import mlstm_triton

        assert os.environ["TRITON_INTERPRET"] == "1" and type(mlstm_triton.update).__name__ == "InterpretedFunction"
        monkeypatch.setattr(module, "triton_usable", lambda inputs: inputs.dtype != torch.float64)
    return request.param


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
NAMES = ("inputs", "wh", "wmh", "hidden", "cell")


class Case:
    """Random tensors of one window, in `dtype`; the reference reads the same values in fp64."""

    def __init__(self, family: str, source: str, dtype: torch.dtype, masks: str = "both", seed: int = 0) -> None:
        torch.manual_seed(seed)
        width = 5 * H if family == "mlstm" else 4 * H
        self.dtype = dtype
        self.tokens = torch.randint(0, V, (T, B)) if source == "table" else None
        state_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self.tensors: dict[str, Tensor | None] = {
            "inputs": torch.randn((V, width) if source == "table" else (T, B, width)).to(dtype),
            "wh": (torch.randn(4 * H, H) / H**0.5).to(dtype),
            "wmh": (torch.randn(H, H) / H**0.5).to(dtype) if family == "mlstm" else None,
            "hidden": torch.rand(B, H).to(dtype),
            "cell": torch.randn(B, H).to(state_dtype),
        }
        self.reset = torch.rand(T, B) < 0.3 if masks in ("both", "reset") else None
        self.lengths = torch.tensor([0, 1, 4, T, T]) if masks in ("both", "lengths") else None
        # Weights of a scalar loss; nothing after a row's length may count.
        valid = torch.arange(T).unsqueeze(1) < (self.lengths if self.lengths is not None else torch.full((B,), T))
        self.loss_weights = (torch.randn(T, B, H) * valid.unsqueeze(-1)).double()
        self.cell_weights = (torch.randn(T, B, H) * valid.unsqueeze(-1)).double()

    def leaves(self, dtype: torch.dtype | None = None) -> dict[str, Any]:
        return {
            name: None if x is None else x.detach().clone().to(dtype or x.dtype).requires_grad_()
            for name, x in self.tensors.items()
        }

    def scan(self, leaves: dict[str, Any], recompute: bool = False) -> list[Tensor]:
        masks = {"reset": self.reset, "lengths": self.lengths}
        return list(mlstm_scan(tokens=self.tokens, return_cells=True, recompute=recompute, **masks, **leaves))

    def loop(self, inputs: Tensor, wh: Tensor, wmh: Tensor | None, hidden: Tensor, cell: Tensor) -> list[Tensor]:
        """The cell, step by step; projections come in through identity matrices."""
        hiddens, cells, final_h, final_c = [], [], hidden, cell
        identity = torch.eye(inputs.shape[-1], dtype=inputs.dtype)
        for t in range(T):
            x = inputs[t] if self.tokens is None else inputs[self.tokens[t]]
            if self.reset is not None:
                keep = (~self.reset[t]).to(cell.dtype).unsqueeze(1)
                hidden, cell = hidden * keep, cell * keep
            if wmh is None:  # m = h: ones for wmx x, the identity for wmh
                x = torch.cat([x, torch.ones_like(hidden)], dim=1)
                eye = torch.eye(5 * H, dtype=x.dtype)
                wx, wmx, step_wmh = eye[: 4 * H], eye[4 * H :], torch.eye(H, dtype=x.dtype)
            else:
                wx, wmx, step_wmh = identity[: 4 * H], identity[4 * H :], wmh
            hidden, cell = mlstm_cell(x, hidden, cell, wx, wh, wmx, step_wmh, torch.zeros(4 * H, dtype=x.dtype))
            hiddens.append(hidden)
            cells.append(cell)
            if self.lengths is None:
                final_h, final_c = hidden, cell
            else:
                alive = (t < self.lengths).unsqueeze(1)
                final_h, final_c = torch.where(alive, hidden, final_h), torch.where(alive, cell, final_c)
        return [torch.stack(hiddens), final_h, final_c, torch.stack(cells)]

    def loss(self, outputs: list[Tensor]) -> Tensor:
        hidden, final_h, final_c, cells = (x.double() for x in outputs)
        return (
            (hidden * self.loss_weights).sum()
            + (cells * self.cell_weights).sum()
            + final_h.sum()
            + final_c.square().sum()
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("source", ["table", "steps"])
@pytest.mark.parametrize("family", ["mlstm", "lstm"])
@pytest.mark.parametrize("masks", ["none", "reset", "lengths", "both"])
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_scan_equals_loop(
    family: str, source: str, dtype: torch.dtype, masks: str, recompute: bool, path: str, assert_near: Any
) -> None:
    if path == "Triton" and (masks in ("reset", "lengths") or dtype == torch.float64):
        pytest.skip("the interpreter takes seconds a case; 'both' has these masks, and fp64 runs on plain PyTorch")
    case = Case(family, source, dtype, masks)
    fast, slow = case.leaves(), case.leaves(torch.float64)
    outputs, wanted = case.scan(fast, recompute), case.loop(**slow)
    valid = case.loss_weights.abs().sum(-1, keepdim=True) > 0
    for name, got, want in zip(("hidden", "final hidden", "final cell", "cells"), outputs, wanted, strict=True):
        every_step = name in ("hidden", "cells")
        assert_near(got * valid if every_step else got, want * valid if every_step else want, dtype, name)
    case.loss(outputs).backward()
    case.loss(wanted).backward()
    for name in NAMES:
        if fast[name] is not None:
            assert fast[name].grad.dtype == fast[name].dtype
            assert_near(fast[name].grad, slow[name].grad, dtype, f"gradient of {name}")


@pytest.mark.parametrize("source", ["table", "steps"])
@pytest.mark.parametrize("family", ["mlstm", "lstm"])
def test_gradcheck(family: str, source: str) -> None:
    case = Case(family, source, torch.float64)
    leaves = case.leaves()
    names = [name for name in NAMES if leaves[name] is not None]

    def run(*values: Tensor) -> tuple[Tensor, ...]:
        hidden, final_h, final_c, cells = case.scan({**leaves, **dict(zip(names, values, strict=True))})
        return hidden * case.loss_weights, final_h, final_c, cells * case.cell_weights

    assert torch.autograd.gradcheck(run, [leaves[name] for name in names], fast_mode=True)


@pytest.mark.parametrize("steps", [1, 2, 4, T])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("source", ["table", "steps"])
def test_blocks_of_steps_give_the_same_gradients(
    steps: int, source: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, assert_near: Any
) -> None:
    case = Case("mlstm", source, dtype)
    whole, blocks = case.leaves(), case.leaves()
    case.loss(case.scan(whole)).backward()
    monkeypatch.setattr(module, "BLOCK_ROWS", steps * B)
    case.loss(case.scan(blocks)).backward()
    for name in NAMES:
        assert_near(blocks[name].grad, whole[name].grad, dtype, name)


@pytest.mark.parametrize("trained", NAMES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_frozen_inputs_get_no_gradient_and_change_no_other(trained: str, dtype: torch.dtype) -> None:
    case = Case("mlstm", "steps", dtype)
    all_leaves, one = case.leaves(), case.leaves()
    for name in NAMES:
        one[name].requires_grad_(name == trained)
    case.loss(case.scan(all_leaves)).backward()
    case.loss(case.scan(one)).backward()
    assert [name for name in NAMES if one[name].grad is not None] == [trained]
    assert torch.equal(one[trained].grad, all_leaves[trained].grad)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_backward_can_run_twice(dtype: torch.dtype) -> None:
    case = Case("mlstm", "table", dtype)
    leaves = case.leaves()
    loss = case.loss(case.scan(leaves))
    first = torch.autograd.grad(loss, [leaves[name] for name in NAMES], retain_graph=True)
    second = torch.autograd.grad(loss, [leaves[name] for name in NAMES])
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("masks", ["none", "both"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_grad_the_values_are_the_same_to_the_bit(dtype: torch.dtype, masks: str) -> None:
    case = Case("mlstm", "table", dtype, masks)
    with_grad = case.scan(case.leaves())
    with torch.no_grad():
        without = case.scan(case.leaves())
        plain = mlstm_scan(tokens=case.tokens, reset=case.reset, lengths=case.lengths, **case.leaves())
    assert all(torch.equal(a, b) for a, b in zip(with_grad, without, strict=True))
    assert plain.cells is None and torch.equal(plain.final_cell, without[2])


def test_without_grad_no_activations_are_kept() -> None:
    case = Case("mlstm", "table", torch.float32, "none")
    arguments = [case.tensors["inputs"], case.tokens, *(case.tensors[name] for name in NAMES[1:]), None]
    hidden, cell, gates, z = module._scan(*arguments, save=False, keep_cells=False)
    assert len(hidden) == T and len(cell) == 1 and gates.numel() == z.numel() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_keeps_cell_and_gates_in_fp32(dtype: torch.dtype) -> None:
    case = Case("mlstm", "table", dtype, "none")
    hidden, final_h, final_c, cells = case.scan(case.leaves())
    assert hidden.dtype == final_h.dtype == dtype
    assert final_c.dtype == cells.dtype == torch.float32
    # fp32 values that the narrow type cannot hold prove that nothing was rounded on the way.
    assert not torch.equal(cells, cells.to(dtype).float())
    arguments = [case.tensors["inputs"], case.tokens, *(case.tensors[name] for name in NAMES[1:]), None]
    saved = mlstm_steps.forward_steps(*arguments, save=True, keep_cells=True)
    assert saved.gates.dtype == torch.float32 and saved.z.dtype == dtype


def test_reset_heals_a_state_that_came_in_as_nan() -> None:
    case = Case("mlstm", "table", torch.float32, "none")
    case.reset = torch.zeros(T, B, dtype=torch.bool)
    case.reset[0, 1] = True
    case.tensors["hidden"][1], case.tensors["cell"][1] = torch.nan, torch.nan
    leaves = case.leaves()
    outputs = case.scan(leaves)
    case.loss(outputs).backward()
    assert all(x.isfinite().all() for x in outputs)
    assert all(leaves[name].grad.isfinite().all() for name in NAMES)


@pytest.mark.parametrize("family", ["mlstm", "lstm"])
def test_reset_heals_a_state_that_went_to_nan_inside_the_window(family: str) -> None:
    case = Case(family, "steps", torch.float32, "none")
    case.reset = torch.zeros(T, B, dtype=torch.bool)
    case.reset[4, 1] = True
    case.tensors["inputs"][2, 1] = torch.nan
    hidden, _, _, cells = case.scan(case.leaves())
    for x in (hidden, cells):
        assert x[2:4, 1].isnan().all() and x[4:].isfinite().all()


def test_reset_in_padding_leaves_the_final_state() -> None:
    case = Case("mlstm", "table", torch.float64, "lengths")
    plain = case.scan(case.leaves())
    case.reset = torch.arange(T).unsqueeze(1) >= case.lengths
    padded = case.scan(case.leaves())
    assert torch.equal(plain[1], padded[1]) and torch.equal(plain[2], padded[2])
    assert torch.equal(padded[2][0], case.tensors["cell"][0])  # a row without tokens keeps its state


def test_tokens_beyond_the_table_are_an_error_and_any_integers_will_do() -> None:
    case = Case("mlstm", "table", torch.float32, "none")
    assert case.tokens is not None
    wanted, case.tokens = case.scan(case.leaves()), case.tokens.clone()
    for bad in (-1, V):
        case.tokens[2, 1] = bad
        with pytest.raises((IndexError, RuntimeError)):
            case.scan(case.leaves())
        case.tokens[2, 1] = 0
    case = Case("mlstm", "table", torch.float32, "none")
    assert case.tokens is not None
    case.tokens = case.tokens.int()
    assert all(torch.equal(a, b) for a, b in zip(case.scan(case.leaves()), wanted, strict=True))


# Sizes around those of a vector (4, 8 or 16 floats), a panel (four of them) and a tile (3 or 6 rows).
@pytest.mark.parametrize(("batch", "size"), [(1, 1), (2, 17), (3, 64), (7, 63), (13, 100), (26, 130), (4, 257)])
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("wmh", [True, False], ids=["mlstm", "lstm"])
def test_compiled_sizes_and_threads_agree_with_plain_pytorch(
    batch: int, size: int, threads: int, wmh: bool, path: str, monkeypatch: pytest.MonkeyPatch, assert_near: Any
) -> None:
    if path != "compiled":
        return
    torch.manual_seed(batch * size)
    steps, width = 5, (5 if wmh else 4) * size
    tokens, reset = torch.randint(0, V, (steps, batch)), torch.rand(steps, batch) < 0.3
    tensors = {
        "inputs": torch.randn(V, width), "wh": torch.randn(4 * size, size) / size**0.5,
        "wmh": torch.randn(size, size) / size**0.5 if wmh else None,
        "hidden": torch.rand(batch, size), "cell": torch.randn(batch, size),
    }  # fmt: skip
    weights = torch.randn(steps, batch, size)
    results = []
    before = torch.get_num_threads()
    for compiled in (True, False):
        leaves = {name: None if x is None else x.clone().requires_grad_() for name, x in tensors.items()}
        torch.set_num_threads(threads)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(module, "BLOCK_ROWS", 2 * batch)
                if not compiled:
                    patch.setattr(mlstm_cpu, "usable", lambda inputs: False)
                out = mlstm_scan(tokens=tokens, reset=reset, return_cells=True, **leaves)  # pyright: ignore
                ((out.hidden * weights).sum() + out.final_cell.sum()).backward()
        finally:
            torch.set_num_threads(before)
        results.append([*out, *(x.grad for x in leaves.values() if x is not None)])
    for got, want in zip(*results, strict=True):
        assert_near(got, want, torch.float32)


def test_compiled_rows_do_not_depend_on_the_rows_beside_them(path: str) -> None:
    if path != "compiled":
        return
    torch.manual_seed(3)
    inputs, wh, wmh = torch.randn(V, 5 * 40), torch.randn(160, 40) / 6, torch.randn(40, 40) / 6
    tokens, zeros = torch.randint(0, V, (T, 17)), torch.zeros(17, 40)
    whole = mlstm_scan(inputs, tokens, wh, wmh, zeros, zeros)
    for row in range(17):
        alone = mlstm_scan(inputs, tokens[:, row : row + 1], wh, wmh, zeros[:1], zeros[:1])
        assert torch.equal(alone.hidden[:, 0], whole.hidden[:, row])


def test_the_operator_is_registered_as_pytorch_wants_it() -> None:
    """torch.library.opcheck: schema, fake implementation and autograd, also under torch.compile's tracing."""
    case = Case("mlstm", "table", torch.float32, "reset")
    leaves = case.leaves()
    assert case.reset is not None
    case.reset[0] = False
    arguments = (
        leaves["inputs"],
        case.tokens,
        leaves["wh"],
        leaves["wmh"],
        leaves["hidden"],
        leaves["cell"],
        case.reset,
    )
    torch.library.opcheck(module._scan, (*arguments, True, True))
    torch.library.opcheck(module._scan, (*arguments, False, True))


def test_it_goes_through_torch_compile_in_one_graph() -> None:
    """Traced by dynamo and AOT autograd without a break; the operator itself stays whole."""
    case = Case("mlstm", "table", torch.float32, "reset")

    def step(*values: Tensor) -> Tensor:
        return case.loss(case.scan(dict(zip(NAMES, values, strict=True))))

    eager, compiled = case.leaves(), case.leaves()
    step(*eager.values()).backward()
    torch.compile(step, backend="aot_eager", fullgraph=True)(*compiled.values()).backward()
    for name in NAMES:
        assert torch.equal(eager[name].grad, compiled[name].grad), name


@pytest.mark.parametrize(("batch", "size"), [(1, 3), (7, 64), (16, 70), (33, 130)])
@pytest.mark.parametrize("wmh", [True, False], ids=["mlstm", "lstm"])
def test_eight_bit_weights_are_the_rounded_ones(batch: int, size: int, wmh: bool, path: str) -> None:
    """Against a loop in fp64 that rounds weights, h and m in the same places."""
    if path != "compiled" or not mlstm_cpu.has_int8():
        return
    torch.manual_seed(size)
    width = (5 if wmh else 4) * size
    inputs, wh = torch.randn(V, width), torch.randn(4 * size, size) / size**0.5
    wmh_ = torch.randn(size, size) / size**0.5 if wmh else None
    tokens, reset = torch.randint(0, V, (T, batch)), torch.rand(T, batch) < 0.2
    hidden, cell = torch.rand(batch, size), torch.randn(batch, size)
    got = mlstm_scan(
        inputs, tokens, wh, wmh_, hidden, cell, reset, packed=module.pack_weights(wh, wmh_, int8=True)
    )  # fmt: skip

    def rounded(x: Tensor) -> Tensor:
        unit = x.float().abs().amax(dim=1, keepdim=True) / 127.0
        unit = torch.where(unit > 0, unit, 1.0)
        return ((x.float() / unit).round() * unit).double()

    h, c = hidden.double(), cell.double()
    for t in range(T):
        keep = (~reset[t]).unsqueeze(1).double()
        h, c = h * keep, c * keep
        x = inputs[tokens[t]].double()
        m = h if wmh_ is None else (rounded(h) @ rounded(wmh_).t()) * x[:, 4 * size :]
        gates = x[:, : 4 * size] + rounded(m) @ rounded(wh).t()
        i, f, o, u = gates.chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * u.tanh()
        h = o.sigmoid() * c.tanh()
    # A value on the border between two of the 255 may fall to the other side in fp32 and move a row a little.
    assert (got.final_hidden - h).abs().max() < 0.02 and (got.final_cell - c).abs().max() < 0.05
    assert (got.final_hidden - h).abs().median() < 1e-3
    exact = mlstm_scan(inputs, tokens, wh, wmh_, hidden, cell, reset)
    assert not torch.equal(exact.final_hidden, got.final_hidden)
