"""What a language model promises about windows, resets, lengths and state, for both families."""

from __future__ import annotations

import pytest
import torch
from bigbatch.models.build import build_model
from bigbatch.models.config import LSTMConfig, MLSTMConfig, ModelConfig
from bigbatch.models.recurrent import RecurrentLanguageModel, RecurrentState
from torch import Tensor

SIZES = {"embedding_size": 6, "hidden_size": 10}
CONFIGS = [
    MLSTMConfig(**SIZES),
    MLSTMConfig(**SIZES, num_layers=3),
    MLSTMConfig(**SIZES, weight_norm=False),
    LSTMConfig(**SIZES, num_layers=2),
]
B, T = 4, 12
EXACT = {"rtol": 1e-12, "atol": 1e-13}


@pytest.fixture(params=CONFIGS, ids=lambda config: f"{config.kind}-{config.num_layers}")
def model(request: pytest.FixtureRequest) -> RecurrentLanguageModel:
    torch.manual_seed(0)
    return build_model(request.param).double()


def draw_tokens() -> Tensor:
    return torch.randint(0, 256, (B, T), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def draw_state(model: RecurrentLanguageModel) -> RecurrentState:
    zeros = model.init_state(B)
    return RecurrentState(torch.rand_like(zeros.hidden), torch.randn_like(zeros.cell))


def test_shapes_and_dtypes(model: RecurrentLanguageModel) -> None:
    model = model.float()
    logits, state = model(draw_tokens())
    layers = model.config.num_layers
    assert logits.shape == (B, T, 256) and logits.dtype == torch.float32
    assert state.hidden.shape == state.cell.shape == (layers, B, 10)
    hidden, _, cells = model.encode(draw_tokens(), return_cells=True)
    assert hidden.shape == cells.shape == (B, T, 10)
    torch.testing.assert_close(model.output(hidden), logits)
    assert torch.equal(hidden[:, -1], state.hidden[-1]) and torch.equal(cells[:, -1], state.cell[-1])


def test_token_dtypes_give_the_same_logits(model: RecurrentLanguageModel) -> None:
    tokens = draw_tokens()
    assert torch.equal(model(tokens)[0], model(tokens.long())[0])


def test_two_windows_equal_one_pass(model: RecurrentLanguageModel) -> None:
    tokens, start = draw_tokens(), draw_state(model)
    whole, end = model(tokens, start)
    first, middle = model(tokens[:, :5], start)
    second, last = model(tokens[:, 5:], middle)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, **EXACT)
    torch.testing.assert_close(tuple(last), tuple(end), **EXACT)


def test_gradient_crosses_windows_unless_detached(model: RecurrentLanguageModel) -> None:
    tokens = draw_tokens()
    parameters = list(model.parameters())

    def gradients(logits: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(logits.square().sum(), parameters, retain_graph=True)

    _, middle = model(tokens[:, :5])
    connected, _ = model(tokens[:, 5:], middle)
    whole, _ = model(tokens)
    torch.testing.assert_close(gradients(connected), gradients(whole[:, 5:]), rtol=1e-10, atol=1e-12)
    cut, _ = model(tokens[:, 5:], middle.detach())
    assert not torch.allclose(gradients(cut)[0], gradients(connected)[0])


def test_reset_equals_separate_runs(model: RecurrentLanguageModel) -> None:
    tokens, start = draw_tokens(), draw_state(model)
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[1, 4] = reset[2, 0] = reset[3, 7] = True
    logits, end = model(tokens, start, reset)
    for row, cut in ((0, None), (1, 4), (2, 0), (3, 7)):
        one, state = tokens[row : row + 1], start.select(torch.tensor([row]))
        pieces = []
        if cut is None or cut > 0:
            piece, state = model(one[:, :cut], state)
            pieces.append(piece)
        if cut is not None:
            piece, state = model(one[:, cut:])
            pieces.append(piece)
        torch.testing.assert_close(logits[row : row + 1], torch.cat(pieces, dim=1), **EXACT)
        torch.testing.assert_close(tuple(end.select(torch.tensor([row]))), tuple(state), **EXACT)


def test_lengths_equal_unpadded_runs(model: RecurrentLanguageModel) -> None:
    tokens, start = draw_tokens(), draw_state(model)
    lengths = torch.tensor([T, 0, 1, 7])
    logits, end = model(tokens, start, lengths=lengths)
    other_padding = tokens.clone()
    other_padding[3, 7:] = 0
    torch.testing.assert_close(tuple(model(other_padding, start, lengths=lengths)[1]), tuple(end), rtol=0, atol=0)
    for row, length in enumerate(lengths.tolist()):
        index = torch.tensor([row])
        state = start.select(index)
        if length:
            piece, state = model(tokens[row : row + 1, :length], state)
            torch.testing.assert_close(logits[row : row + 1, :length], piece, **EXACT)
        torch.testing.assert_close(tuple(end.select(index)), tuple(state), **EXACT)


def test_no_state_is_kept_in_the_model(model: RecurrentLanguageModel) -> None:
    tokens = draw_tokens()
    before = model(tokens)[0]
    model(tokens.flip(1), draw_state(model))
    assert torch.equal(model(tokens)[0], before)
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_select_and_detach(model: RecurrentLanguageModel) -> None:
    state = model(draw_tokens())[1]
    picked = state.select(torch.tensor([2, 0]))
    assert torch.equal(picked.hidden, state.hidden[:, [2, 0]]) and torch.equal(picked.cell, state.cell[:, [2, 0]])
    assert state.cell.requires_grad and not state.detach().cell.requires_grad


@pytest.mark.parametrize("config", CONFIGS[:2], ids=lambda config: str(config.num_layers))
def test_dropout_follows_the_seed_and_leaves_recurrence_alone(config: MLSTMConfig) -> None:
    torch.manual_seed(0)
    plain = build_model(config).double()
    config_with = MLSTMConfig(**SIZES, num_layers=config.num_layers, dropout=0.5)
    model = build_model(config_with).double()
    model.load_state_dict(plain.state_dict())
    tokens = draw_tokens()
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(model(tokens))
    assert torch.equal(runs[0][0], runs[1][0]) and not torch.equal(runs[0][0], runs[2][0])
    wanted_logits, wanted_state = plain(tokens)
    # The first layer reads no dropped features and its own recurrence is never dropped; layers above see dropped ones.
    torch.testing.assert_close(runs[0][1].cell[0], wanted_state.cell[0], rtol=0, atol=0)
    assert (config.num_layers == 1) == torch.equal(runs[0][1].cell[-1], wanted_state.cell[-1])
    assert torch.equal(model.eval()(tokens)[0], wanted_logits)


def test_seed_decides_the_weights() -> None:
    def weights(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        return list(build_model(CONFIGS[0]).parameters())

    assert all(torch.equal(a, b) for a, b in zip(weights(3), weights(3), strict=True))
    assert not torch.equal(weights(3)[0], weights(4)[0])


def test_recurrent_matrices_start_orthogonal_and_the_forget_gate_open() -> None:
    from bigbatch.models.mlstm_scan import GATE_ORDER

    layer = build_model(MLSTMConfig(**SIZES)).layers[0]
    eye = torch.eye(10)
    for block in (*layer.wh().chunk(4), layer.wmh()):
        torch.testing.assert_close(block @ block.T, eye, rtol=0, atol=1e-5)
    bias = dict(zip(GATE_ORDER, layer.bias.unflatten(0, (4, 10)), strict=True))
    assert (bias.pop("forget") == 1).all() and all((value == 0).all() for value in bias.values())


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("tokens must be integers", {"tokens": torch.zeros(B, T)}),
        ("with time >= 1", {"tokens": torch.zeros(B, 0, dtype=torch.uint8)}),
        (
            "the state holds 3 rows but there are 4",
            {"state": RecurrentState(torch.zeros(1, 3, 10), torch.zeros(1, 3, 10))},
        ),
        ("reset must be bool", {"reset": torch.zeros(B, T)}),
        (r"lengths must be \(4,\)", {"lengths": torch.ones(B, T)}),
    ],
)
def test_what_does_not_fit_is_said(message: str, change: dict) -> None:
    model = build_model(MLSTMConfig(**SIZES))
    with pytest.raises(ValueError, match=message):
        model(**{"tokens": draw_tokens(), **change})


def test_lstm_equals_torch_lstm() -> None:
    from bigbatch.models.mlstm_scan import GATE_ORDER

    torch.manual_seed(0)
    config = LSTMConfig(**SIZES, num_layers=2)
    model = build_model(config).double()
    theirs = torch.nn.LSTM(6, 10, num_layers=2, batch_first=True).double()
    order = [GATE_ORDER.index(gate) for gate in ("input", "forget", "candidate", "output")]
    with torch.no_grad():
        for number, layer in enumerate(model.layers):
            permuted = [x.unflatten(0, (4, 10))[order].flatten(0, 1) for x in (layer.wx, layer.wh, layer.bias)]
            for name, value in zip(("weight_ih", "weight_hh", "bias_ih"), permuted, strict=True):
                getattr(theirs, f"{name}_l{number}").copy_(value)
            getattr(theirs, f"bias_hh_l{number}").zero_()
    tokens, start = draw_tokens(), draw_state(model)
    want, (want_h, want_c) = theirs(model.embedding(tokens.long()), (start.hidden, start.cell))
    hidden, state = model.encode(tokens, start)
    torch.testing.assert_close(hidden, want, **EXACT)
    torch.testing.assert_close(tuple(state), (want_h, want_c), **EXACT)


def test_unknown_kind_is_named() -> None:
    config: ModelConfig = MLSTMConfig(**SIZES)
    config.kind = "gru"  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"model.kind is 'gru': the kinds are mlstm, lstm"):
        build_model(config)


@pytest.mark.parametrize("family", [MLSTMConfig, LSTMConfig])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_frozen_weights_change_no_bit_and_are_forgotten(family: type, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = build_model(family(hidden_size=20, embedding_size=6, num_layers=2)).to(dtype)
    tokens = torch.randint(0, 256, (5, 7))
    lengths = torch.tensor([7, 3, 5, 0, 1])

    def run() -> list[Tensor]:
        first, state = model.encode(tokens)
        second, state = model.encode(tokens, state, lengths=lengths)
        return [first, second[:1], *state]

    with torch.no_grad():
        wanted = run()
    with model.frozen():
        assert all(torch.equal(a, b) for a, b in zip(run(), wanted, strict=True))
        assert not model(tokens)[0].requires_grad
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
        changed = run()
        assert not any(torch.equal(a, b) for a, b in zip(changed, wanted, strict=True))
    assert model(tokens)[0].requires_grad
