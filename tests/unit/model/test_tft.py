"""The whole model: shapes, independence of batch mates, causality, and inputs that are absent."""

from __future__ import annotations

import pytest
import torch

from qat_tft.checkpointing.segments import run_directly
from qat_tft.model.attention import InterpretableAttention
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.schema import GroupSize

ROUNDING = 1e-5  # single precision: kernels may add in another order for another batch size


@pytest.fixture
def inputs(sizes):
    return sizes.inputs(6, torch.Generator().manual_seed(5))


def test_a_forecast_has_the_promised_shapes(make_model, sizes, inputs):
    forecast = make_model()(*inputs)
    assert forecast.quantiles.shape == (6, sizes.horizon, 3)
    assert forecast.attention.shape == (6, sizes.horizon, sizes.history + sizes.horizon)
    assert forecast.static_weights.shape == (6, sizes.static.total)
    assert forecast.historical_weights.shape == (6, sizes.history, sizes.historical.total)
    assert forecast.future_weights.shape == (6, sizes.horizon, sizes.future.total)


@pytest.mark.parametrize("kind", ["make_model", "make_qat_model"])
def test_a_forecast_changes_with_neither_the_batch_s_order_nor_its_mates(kind, request, inputs):
    model = request.getfixturevalue(kind)().eval()
    whole = model(*inputs).quantiles
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(model(*(tensor[order] for tensor in inputs)).quantiles, whole[order], atol=ROUNDING)
    for row in range(6):
        alone = model(*(tensor[row : row + 1] for tensor in inputs)).quantiles
        assert torch.allclose(alone, whole[row : row + 1], atol=ROUNDING)


def test_a_step_s_forecast_depends_on_no_later_known_column(make_model, sizes, inputs):
    model, (static, historical, future) = make_model().eval(), inputs
    before = model(static, historical, future).quantiles
    changed = future.clone()
    changed[:, 1, : sizes.future.real] += 3.0
    after = model(static, historical, changed).quantiles
    assert torch.equal(before[:, 0], after[:, 0])
    assert not torch.equal(before[:, 1], after[:, 1])


def test_attention_looks_at_no_later_position_and_weighs_to_one():
    torch.manual_seed(0)
    attention = InterpretableAttention(8, heads=2, dropout=0.0)
    _, weights = attention(torch.randn(3, 10, 8), horizon=4)
    for step in range(4):
        assert (weights[:, step, : 6 + step + 1] > 0).all()
        assert (weights[:, step, 6 + step + 1 :] == 0).all()
    assert torch.allclose(weights.sum(-1), torch.ones(3, 4))


@pytest.mark.parametrize("padded", [0, 2], ids=["no padding", "padded history"])
def test_attention_and_its_gradient_equal_the_paper_s_mean_over_heads(padded):
    torch.manual_seed(0)
    hidden, heads, horizon = 8, 2, 3
    attention, x = InterpretableAttention(hidden, heads, dropout=0.0).double(), torch.randn(2, 7, hidden).double()
    x.requires_grad_()
    present = torch.arange(4).expand(2, 4) >= padded
    ours, _ = attention(x, horizon, present if padded else None)
    size = hidden // heads
    key_map, value_map = attention.key_value.weight.split([hidden, size])
    outputs = []
    for head in range(heads):
        rows = slice(head * size, (head + 1) * size)
        query, key = x @ attention.query.weight[rows].T, x @ key_map[rows].T
        scores = query @ key.transpose(1, 2) / size**0.5
        blocked = torch.ones(7, 7).triu(1).bool()
        blocked[-horizon:, :padded] = True
        scores = scores.masked_fill(blocked, -torch.inf)
        outputs.append(scores.softmax(-1) @ (x @ value_map.T))
    theirs = (torch.stack(outputs).mean(0) @ attention.output.weight.T)[:, -horizon:]
    assert torch.allclose(ours, theirs)
    gradients = [torch.autograd.grad(output.square().sum(), [x, attention.query.weight]) for output in (ours, theirs)]
    assert all(torch.allclose(*pair) for pair in zip(*gradients, strict=True))


@pytest.mark.parametrize(
    ("changes", "horizon"),
    [
        pytest.param({"static": GroupSize(0)}, 3, id="no static column"),
        pytest.param({"future": GroupSize(0)}, 3, id="no known column"),
        pytest.param(
            {"historical": GroupSize(1), "static": GroupSize(0), "future": GroupSize(0)}, 3, id="target alone"
        ),
        pytest.param({}, 1, id="horizon 1"),
        pytest.param({"history": 1}, 3, id="history 1"),
    ],
)
def test_absent_inputs_and_smallest_sizes_train(make_model, sizes, changes, horizon):
    shape = type(sizes)(**{"horizon": horizon, **changes})
    model = make_model(shape)
    forecast = model(*shape.inputs(4, torch.Generator().manual_seed(0)))
    assert forecast.quantiles.shape == (4, horizon, 3)
    forecast.quantiles.square().sum().backward()
    # With one historical column there is nothing to weigh: a softmax of one number is constant.
    only_one = shape.historical.total == 1
    idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert [name for name in idle if not (only_one and "weighing" in name)] == []


def test_forward_leaves_the_model_as_it_was(make_model, inputs):
    model = make_model().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    attributes = set(vars(model))
    model(*inputs)
    assert set(vars(model)) == attributes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", ["make_model", "make_qat_model"])
def test_every_product_of_the_model_runs_in_a_named_segment(kind, request, inputs):
    names: list[str] = []

    def recording(name, function, /, *tensors):
        names.append(name)
        return run_directly(name, function, *tensors)

    request.getfixturevalue(kind)()(*inputs, recording)
    assert list(dict.fromkeys(names)) == [
        "static_selection",
        "static_tables",
        "static_encoder",
        "historical_selection",
        "historical_tables",
        "historical_encoder",
        "future_selection",
        "future_tables",
        "future_encoder",
        "lstm_encoder",
        "lstm_decoder",
        "temporal_attention",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "multiple of heads"),
        ({"horizon": 0}, "horizon is 0"),
        ({"selection_chunk": 0}, "selection_chunk is 0"),
    ],
    ids=["heads", "horizon", "chunk"],
)
def test_sizes_that_cannot_work_are_refused(changes, message):
    options = {"history": 6, "horizon": 3, "hidden": 8, "heads": 2, **changes}
    with pytest.raises(ValueError, match=message):
        TemporalFusionTransformer(GroupSize(1), GroupSize(1), GroupSize(1), **options)
