"""The model that ours is compared with computes the same function, the long way."""

from __future__ import annotations

import pytest
import torch

from qat_tft.model.selection import VariableSelection
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.schema import GroupSize

EXACT = 1e-9  # double precision: only the order of additions differs
SINGLE = 1e-4  # weights unfolded in single precision, where an embedding of small slope is divided by it
STATIC, HISTORICAL, FUTURE = 2, 7, 3
HISTORY, HORIZON, HIDDEN, HEADS = 5, 3, 8, 2


@pytest.fixture
def plain(benchmark_named):
    torch.manual_seed(0)
    options = {"horizon": HORIZON, "hidden": HIDDEN, "heads": HEADS, "dropout": 0.1, "quantiles": 3}
    return benchmark_named("plain_tft").PlainTFT(STATIC, HISTORICAL, FUTURE, **options)


@pytest.fixture
def inputs():
    torch.manual_seed(1)
    return torch.randn(4, STATIC), torch.randn(4, HISTORY, HISTORICAL), torch.randn(4, HORIZON, FUTURE)


def test_its_forecast_has_the_promised_shapes(plain, inputs):
    forecast = plain(*inputs)
    assert forecast.quantiles.shape == (4, HORIZON, 3)
    assert forecast.static_weights.shape == (4, STATIC)
    assert forecast.historical_weights.shape == (4, HISTORY, HISTORICAL)
    assert forecast.future_weights.shape == (4, HORIZON, FUTURE)


def test_every_parameter_gets_a_gradient(plain, inputs):
    plain(*inputs).quantiles.square().sum().backward()
    assert [name for name, p in plain.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.fixture
def ours():
    torch.manual_seed(2)
    return TemporalFusionTransformer(
        *(GroupSize(size) for size in (STATIC, HISTORICAL, FUTURE)),
        history=HISTORY,
        horizon=HORIZON,
        hidden=HIDDEN,
        heads=HEADS,
        selection="exact",
        selection_chunk=2,
    )


def test_a_plain_model_made_of_ours_gives_the_same_forecast(ours, inputs, benchmark_named):
    randomize_norms(ours)
    plain = benchmark_named("plain_tft").PlainTFT.of(ours.eval())
    ours, plain = ours.double(), plain.double()
    for one, other in zip(ours(*(t.double() for t in inputs)), plain(*(t.double() for t in inputs)), strict=True):
        assert torch.allclose(one, other, rtol=SINGLE, atol=SINGLE)


def test_our_model_with_its_weights_folded_gives_the_same_forecast(plain, ours, inputs):
    randomize_norms(plain)
    plain, ours = plain.double().eval(), ours.double().eval()
    for name in ("static_encoder", "lstm_encoder", "lstm_decoder", "temporal_attention", "head"):
        getattr(ours, name).load_state_dict(getattr(plain, name).state_dict())
    for name in ("static_selection", "historical_selection", "future_selection"):
        fold(getattr(plain, name), getattr(ours, name))
    inputs = [tensor.double() for tensor in inputs]
    for one, other in zip(ours(*inputs), plain(*inputs), strict=True):
        assert torch.allclose(one, other, rtol=EXACT, atol=EXACT)


@torch.no_grad()
def randomize_norms(plain) -> None:
    for name, parameter in plain.named_parameters():
        if "norm" in name:
            parameter.normal_()


@torch.no_grad()
def fold(plain, folded: VariableSelection) -> None:
    """Give the folded network the plain one's weights, by the algebra it is said to follow."""
    slope, offset = plain.embedding_weight, plain.embedding_bias  # [V, H]
    variables, hidden = slope.shape
    grns, weighing = plain.grns, plain.weighing
    folded.real_embedding.weight.copy_(slope)
    folded.real_embedding.bias.copy_(offset)
    folded.real_first.weight.copy_(torch.einsum("vio,vi->vo", grns.first.weight, slope))
    folded.real_first.bias.copy_(torch.einsum("vio,vi->vo", grns.first.weight, offset) + grns.first.bias[:, 0])
    for name in ("second", "gate"):
        getattr(folded, name).weight.copy_(getattr(grns, name).weight.transpose(1, 2))
        getattr(folded, name).bias.copy_(getattr(grns, name).bias[:, 0])
    folded.norm.weight.copy_(grns.norm_weight[:, 0])
    folded.norm.bias.copy_(grns.norm_bias[:, 0])
    side_by_side = torch.cat([weighing.first.weight, weighing.skip.weight]).view(-1, variables, hidden)
    bias = torch.cat([weighing.first.bias, weighing.skip.bias])
    folded.weighing.real.weight.copy_(torch.einsum("ovh,vh->ov", side_by_side, slope))
    folded.weighing.real.bias.copy_(torch.einsum("ovh,vh->o", side_by_side, offset) + bias)
    for name in ("second", "gate", "norm"):
        getattr(folded.weighing, name).load_state_dict(getattr(weighing, name).state_dict())
    if weighing.context is not None:
        folded.weighing.context.load_state_dict(weighing.context.state_dict())
