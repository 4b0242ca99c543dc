import pytest
import torch

from qat_tft.model.tabulated import FrozenTable, Table
from qat_tft.quantization.integer import integer_model
from qat_tft.quantization.prepare import LEFT_OUT, QATTemporalFusionTransformer
from qat_tft.quantization.ranges import Phase
from qat_tft.quantization.scheme import scheme_for
from qat_tft.quantization.tables import IntegerTable, QuantizedTable, table_codes

TABLE = "historical_selection.table"
ROUNDING = 1e-5  # single precision, sums of a few variables


@pytest.fixture
def rows():
    return torch.randn(3, 7, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def table():
    return QuantizedTable()


@pytest.mark.parametrize("phase", ["float", "calibrate"])
def test_rows_pass_as_they_are_before_qat(table, rows, phase):
    table.phase = Phase(phase)
    assert torch.equal(table(rows), rows)
    assert not table.in_double


def test_each_row_is_rounded_by_itself_to_eight_bits_of_its_own_largest_value(table, rows):
    table.phase = Phase.QAT
    rounded = table(rows)
    assert torch.equal(rounded[1, 2], table(rows[1, 2])), "whatever is beside it"
    steps = rows.abs().amax(-1, keepdim=True) / 127
    assert torch.allclose(rounded / steps, (rounded / steps).round(), atol=1e-3)
    assert ((rounded - rows).abs() <= 0.5001 * steps).all()


def test_the_gradient_passes_the_rounding(table, rows):
    table.phase = Phase.QAT
    rows.requires_grad_()
    table(rows).sum().backward()
    assert torch.equal(rows.grad, torch.ones_like(rows))


def test_frozen_rows_are_those_of_the_file(table, rows):
    table.phase = Phase.FROZEN
    assert table.in_double
    frozen = table(rows.double())
    assert frozen.dtype is torch.float32
    stored = IntegerTable(rows.double().flatten(0, 1))
    assert torch.equal(stored(torch.arange(21)), frozen.flatten(0, 1))
    assert stored.codes.dtype is torch.int8


def test_a_row_of_zeros_has_a_scale_and_codes_of_zero():
    codes, scale = table_codes(torch.zeros(2, 4, dtype=torch.float64))
    assert not codes.any()
    assert (scale > 0).all()


@pytest.mark.parametrize("target", ["x86", "portable", "tensorrt"])
def test_the_integer_form_of_a_model_computes_what_its_qat_form_does(make_qat_model, sizes, target):
    model = make_qat_model(target=target).eval()
    model.set_phase("frozen")
    inputs = sizes.inputs(8, torch.Generator().manual_seed(9))
    with torch.no_grad():
        ours, theirs = integer_model(model)(*inputs).quantiles, model(*inputs).quantiles
    assert torch.allclose(ours, theirs, rtol=ROUNDING, atol=ROUNDING)
    assert type(integer_model(model).get_submodule(TABLE)) is IntegerTable


def test_the_layers_that_a_table_holds_keep_their_weights_and_train(make_qat_model, sizes):
    model = make_qat_model()
    reasons = dict(model.float_layers())
    for part in ("real_first", "category_first", "gate"):
        assert "table" in reasons[f"historical_selection.{part}"]
    model.train()(*sizes.inputs(8, torch.Generator().manual_seed(9))).quantiles.square().sum().backward()
    for name, parameter in model.model.historical_selection.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_rounding_a_table_changes_forecasts_and_its_phase_alone_decides(make_qat_model, sizes):
    model = make_qat_model().eval()
    model.set_phase("float")
    inputs = sizes.inputs(8, torch.Generator().manual_seed(9))
    with torch.no_grad():
        before = model(*inputs).quantiles
        model.roundings()[TABLE].phase = Phase.FROZEN
        after = model(*inputs).quantiles
    assert not torch.equal(before, after)
    assert torch.allclose(before, after, atol=0.1 * before.abs().max().item())


def test_a_table_that_is_left_out_stays_in_floating_point(make_model, sizes):
    model = QATTemporalFusionTransformer(make_model(), scheme_for("x86"), frozenset({TABLE}))
    assert (TABLE, LEFT_OUT) in model.float_layers()
    assert TABLE not in model.roundings()
    assert type(model.model.get_submodule(TABLE)) is Table
    assert type(model.model.get_submodule("future_selection.table")) is QuantizedTable
    assert type(Table().frozen(torch.zeros(2, 4, dtype=torch.float64))) is FrozenTable
