"""How many bits each layer has, and the search that finds layers which can have fewer."""

from __future__ import annotations

import pytest
import torch

from qat_tft.quantization.bit_search import BitSearch, Move, _in_order
from qat_tft.quantization.bits import BitLayout, parse_layers
from qat_tft.quantization.prepare import QATTemporalFusionTransformer, state_for
from qat_tft.quantization.ranges import Phase
from qat_tft.quantization.scheme import scheme_for


@pytest.mark.parametrize(
    ("bits", "expected"), [(8, (8, 8, 8, 8)), (4, (4, 8, 8, 4)), (2, (2, 8, 8, 4))], ids=["8", "4", "2"]
)
def test_head_and_tables_keep_eight_bits_and_lstms_four(bits, expected):
    layout = BitLayout(bits)
    kinds = (("enrichment.first", "linear"), ("head", "linear"), ("x.table", "table"), ("encoder.cell", "lstm"))
    assert tuple(layout.of(name, kind) for name, kind in kinds) == expected


def test_a_named_layer_has_the_bits_it_is_given():
    layout = BitLayout(8, parse_layers(["head=4", " enrichment.first=2"]), learned=True)
    assert (layout.of("head", "linear"), layout.of("enrichment.first", "linear"), layout.fewest) == (
        4,
        2,
        2,
    )


@pytest.mark.parametrize("entry", ["head", "head=3", "head=", "head=four"])
def test_another_form_of_an_entry_is_refused(entry):
    with pytest.raises(ValueError, match="is not a layer with its bits"):
        parse_layers([entry])


@pytest.fixture
def few(make_model) -> QATTemporalFusionTransformer:
    return QATTemporalFusionTransformer(make_model(), scheme_for("x86"), products="float", layout=BitLayout(4)).eval()


def test_a_model_says_which_layers_have_few_bits_and_an_unknown_one_is_refused(few, make_model):
    low = few.low_bits()
    assert set(low.values()) == {4}
    assert set(few.roundings()) - low.keys() == {"head", *few.tables()}
    with pytest.raises(ValueError, match="there is no layer called 'tail' to give other bits"):
        QATTemporalFusionTransformer(make_model(), scheme_for("x86"), layout=BitLayout(8, {"tail": 4}))


def test_a_layer_left_in_floating_point_drops_its_scales(few, make_model):
    name = next(name for name in few.low_bits() if name.endswith("encoder.cell"))
    fewer = QATTemporalFusionTransformer(
        make_model(), scheme_for("x86"), frozenset({name}), products="float", layout=BitLayout(4)
    )
    fewer.load_state_dict(state_for(fewer, few.state_dict()))
    assert name not in fewer.low_bits()


@pytest.fixture
def search(make_model, sizes) -> BitSearch:
    model = QATTemporalFusionTransformer(make_model(), scheme_for("x86"), products="float").eval()
    model.set_phase(Phase.FROZEN)
    inputs = sizes.inputs(8, torch.Generator().manual_seed(1))
    exact = make_model().eval()(*inputs).quantiles.detach()

    @torch.no_grad()
    def measure():
        return (1.0 + float((model(*inputs).quantiles - exact).abs().mean()),)

    return BitSearch(model, measure, (1.0,))


def test_every_move_is_measured_and_the_model_is_left_as_it_was(search):
    before = search.measure()
    moves = search.moves()
    assert search.measure() == before
    layers = {move.layer for move in moves}
    assert layers == {name for name in search.model.roundings() if name != "head" and not name.endswith(".table")}
    lstms = {name for name in layers if name.endswith(".cell")}
    assert {move.layer for move in moves if move.bits == 2} == layers - lstms
    for move in moves:
        parameters = search.model.model.get_submodule(move.layer).named_parameters()
        count = sum(parameter.numel() for name, parameter in parameters if "weight" in name)
        assert move.saved == count * (0.5 if move.bits == 4 else 0.25)
    assert max(abs(move.cost) for move in moves) > 0


def test_moves_come_by_cost_per_byte_and_a_layers_second_after_its_first():
    moves = [Move("a", 4, 0.5, 10.0), Move("a", 2, -1.0, 5.0), Move("b", 4, 0.1, 10.0), Move("b", 2, 3.0, 5.0)]
    assert [(move.layer, move.bits) for move in _in_order(moves)] == [("b", 4), ("a", 4), ("a", 2), ("b", 2)]


def test_a_budget_of_bytes_takes_the_fewest_moves_that_meet_it(search):
    moves = search.moves()
    whole = search.within_bytes(moves, 1e9)
    assert (dict(whole.bits), whole.weight_bytes) == ({}, search.within_bytes((), 1e9).weight_bytes)
    most = whole.weight_bytes - moves[0].saved - 1
    choice = search.within_bytes(moves, most)
    assert choice.weight_bytes <= most
    assert set(choice.bits) == {move.layer for move in moves[:2]}
    assert search.within_bytes(moves, search.fewest_bytes(moves) - 1) is None
    assert search.within_bytes(moves, search.fewest_bytes(moves)).weight_bytes == search.fewest_bytes(moves)


def test_a_budget_of_quality_takes_as_many_moves_as_it_allows(search):
    moves = search.moves()
    risks = [search._choice(moves[:count]).risks[0] for count in range(len(moves) + 1)]
    drop = risks[len(moves) // 2] - 1.0 + 1e-9
    choice = search.within_drop(moves, drop)
    assert search.drop(choice) <= drop
    assert choice.bits
    assert search.within_drop(moves, 10.0).weight_bytes == search.fewest_bytes(moves)
    assert search.within_drop(moves, -1.0) is None
