import pytest
import torch

from qat_tft.model.selection import VariableSelection
from qat_tft.model.selection_form import in_form, selection_sqnr
from qat_tft.model.tabulated import TabulatedSelection

FORMS = {"exact": VariableSelection, "tabulated": TabulatedSelection}


@pytest.mark.parametrize(("before", "after"), [("exact", "tabulated"), ("tabulated", "exact")])
def test_a_model_in_another_form_has_the_same_parameters_but_second_maps_within_gates(make_model, before, after):
    model = make_model(selection=before)
    other = in_form(model, after, knots=257)
    assert type(model.historical_selection) is FORMS[before]
    assert type(other.historical_selection) is FORMS[after]
    assert other.historical_selection.training
    theirs = dict(other.named_parameters())
    parts = [name for name, _ in model.named_parameters() if "_selection.second" not in name]
    assert list(theirs) == parts
    for name, ours in model.named_parameters():
        if name in theirs and (before == "tabulated" or "_selection.gate" not in name):
            assert torch.equal(ours, theirs[name]), name
            assert ours is not theirs[name]


def test_more_knots_agree_better_and_the_modes_of_both_models_stay(make_model, sizes):
    model = make_model(selection="exact").eval()
    inputs = sizes.inputs(16, torch.Generator().manual_seed(0))
    tables = [in_form(model, "tabulated", knots=knots).train() for knots in (9, 65, 257)]
    found = [selection_sqnr(model, other, inputs) for other in tables]
    assert found[0] + 15 < found[1] < found[2] - 15
    assert not model.training
    assert tables[0].training


def test_it_is_the_worst_network_that_counts(make_model, sizes):
    model = make_model(selection="exact").eval()
    inputs = sizes.inputs(16, torch.Generator().manual_seed(0))
    other = in_form(model, "exact", knots=3)
    with torch.no_grad():
        other.future_selection.norm.bias += 1.0
    assert selection_sqnr(model, other, inputs) < 20
