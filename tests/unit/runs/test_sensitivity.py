"""Costs of rounding are measured one group at a time, and the choice of float layers is small and measured."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qat_tft.quantization.prepare import QATTemporalFusionTransformer, state_for
from qat_tft.quantization.ranges import Phase
from qat_tft.quantization.rounding_costs import (
    Costs,
    by_layer,
    by_segment,
    leave_float,
    mean,
    measure_costs,
    rise,
    rounding_only,
)
from qat_tft.quantization.scheme import scheme_for


class Rounded:
    """Stands for a QAT model of four layers: what counts is which of them round."""

    def __init__(self, names: str = "abcd") -> None:
        self.names = {name: type("Quantizer", (), {"phase": Phase.FROZEN})() for name in names}
        self.phase = Phase.FROZEN

    def roundings(self):
        return self.names

    def set_phase(self, phase):
        for quantizer in self.names.values():
            quantizer.phase = phase

    def rounding(self) -> set[str]:
        return {name for name, quantizer in self.names.items() if quantizer.phase is Phase.FROZEN}


def risk_of(costs: dict[str, float], joint: float = 0.0):
    """Return a function of what rounds: a base, each layer's cost, and more where `a` and `b` both round."""

    def risk(rounding: set[str]) -> float:
        return 1.0 + sum(costs[name] for name in rounding) + (joint if {"a", "b"} <= rounding else 0.0)

    return risk


def test_each_group_is_measured_alone_and_the_costliest_comes_first():
    model, risk, seen = Rounded(), risk_of({"a": 0.1, "b": 0.4, "c": 0.0, "d": -0.1}), []
    costs = measure_costs(
        model,
        by_layer(model),
        lambda: (risk(model.rounding()), 3 * risk(model.rounding())),
        told=lambda *stage: seen.append(stage),
    )
    assert list(costs.alone) == ["b", "a", "c", "d"]
    assert seen == [(f"measuring {name}", place, 4) for place, name in enumerate("abcd")]
    assert costs.unrounded == (1.0, 3.0)
    assert costs.rise("b") == pytest.approx(0.4)
    assert model.rounding() == set("abcd"), "the phase is restored"


@settings(max_examples=60, deadline=None)
@given(
    costs=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    joint=st.floats(0, 1),
    allowed=st.floats(0.01, 2),
)
def test_a_choice_keeps_the_limit_and_needs_every_layer_it_leaves_float(costs, joint, allowed):
    model, risk = Rounded(), risk_of(dict(zip("abcd", costs, strict=True)), joint)

    def measure():
        return (risk(model.rounding()),)

    measured = measure_costs(model, by_layer(model), measure)
    choice = leave_float(model, by_layer(model), measured, measure, highest=1 + allowed)
    possible = [
        set(rounding)
        for size in range(1, 5)
        for rounding in combinations("abcd", size)
        if risk(set(rounding)) <= 1 + allowed
    ]
    if choice is None:
        assert not any(len(rounding) > 1 for rounding in possible), "one layer at least must stay INT8"
        return
    rounding = set("abcd") - set(choice.groups)
    assert choice.risks == pytest.approx((risk(rounding),))  # costs add up in another order
    assert mean(choice.risks) <= 1 + allowed
    assert not any(risk(rounding | {name}) <= 1 + allowed for name in choice.groups)
    if not joint:  # costs that add up: the greedy choice is the smallest there is
        assert len(rounding) == max(len(other) for other in possible)


def test_a_layer_left_float_too_early_is_rounded_again():
    """`a` is costliest alone, but too much is only `b` together with `c`: once `b` stays float, `a` may round."""
    model = Rounded("abc")
    table = {"": 0, "a": 5, "b": 4, "c": 3, "bc": 20, "ac": 5, "ab": 5, "abc": 30}

    def measure():
        return (1.0 + table["".join(sorted(model.rounding()))],)

    costs = measure_costs(model, by_layer(model), measure)
    choice = leave_float(model, by_layer(model), costs, measure, highest=6.5)
    assert choice.groups == ("b",)
    assert choice.risks == (6.0,)


def test_within_the_limit_nothing_is_left_float():
    model = Rounded()
    costs = Costs((1.0,), dict.fromkeys("abcd", (1.0,)))
    choice = leave_float(model, by_layer(model), costs, lambda: (1.0,), highest=1.0)
    assert (choice.groups, choice.risks) == ((), (1.0,))


def test_a_rise_is_that_of_the_mean_over_the_quantiles():
    assert rise((1.0, 2.0, 6.0), (1.0, 1.0, 1.0)) == pytest.approx(2.0)


def test_rounding_only_in_some_layers_changes_what_the_model_computes(make_qat_model, sizes):
    model = make_qat_model().eval()
    model.set_phase("frozen")
    inputs = sizes.inputs(8, torch.Generator().manual_seed(1))

    def forecast(layers):
        with rounding_only(model, layers):
            return model(*inputs).quantiles

    everything = forecast(model.roundings())
    assert torch.equal(everything, model(*inputs).quantiles)
    nothing, head = forecast(()), forecast(("head",))
    assert not torch.equal(head, nothing)
    assert not torch.equal(head, everything)
    with pytest.raises(KeyError), rounding_only(model, ("no_such",)):
        pass
    assert model.phase is Phase.FROZEN


def test_segments_hold_every_layer_once(make_qat_model):
    model = make_qat_model()
    groups = by_segment(model)
    assert sorted(layer for layers in groups.values() for layer in layers) == sorted(model.roundings())
    assert {"historical_selection", "lstm_encoder", "temporal_attention", "head"} <= set(groups)
    assert all(layer.split(".")[0] == segment for segment, layers in groups.items() for layer in layers)


@pytest.mark.parametrize("layer", ["head", "lstm_encoder.cell", "historical_selection.table"])
def test_weights_of_a_fully_quantized_model_serve_one_that_leaves_a_layer_float(
    layer, make_model, make_qat_model, sizes
):
    full = make_qat_model().eval()
    full.set_phase("frozen")
    fewer = QATTemporalFusionTransformer(make_model(seed=3), scheme_for("x86"), skip=frozenset({layer})).eval()
    fewer.load_state_dict(state_for(fewer, full.state_dict()))
    fewer.set_phase("frozen")
    inputs = sizes.inputs(64, torch.Generator().manual_seed(1))
    with rounding_only(full, [name for name in full.roundings() if name != layer]):
        expected = full(*inputs).quantiles
    assert torch.allclose(fewer(*inputs).quantiles, expected, atol=1e-6)
    assert not torch.allclose(full(*inputs).quantiles, expected, atol=1e-6)
