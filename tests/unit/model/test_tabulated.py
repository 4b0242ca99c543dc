import pytest
import torch

from qat_tft.checkpointing.segments import run_directly
from qat_tft.model.inference import TableSelection
from qat_tft.model.selection import VariableSelection
from qat_tft.model.table_rows import normalized_rows
from qat_tft.model.tabulated import TabulatedSelection, sizes_within
from qat_tft.schema import GroupSize

HIDDEN = 8
SIZE = GroupSize(5, (3, 40, 7))
ROUNDING = 1e-5  # single precision, sums of eight variables in another order
KNOTS = 33


def make(size=SIZE, *, chunk=3, knots=KNOTS, context=True, dropout=0.0) -> TabulatedSelection:
    torch.manual_seed(0)
    return TabulatedSelection("test", size, HIDDEN, context=context, dropout=dropout, chunk=chunk, count=knots)


def exact(selection: TabulatedSelection, size=SIZE) -> VariableSelection:
    plain = VariableSelection("test", size, HIDDEN, context=True, dropout=0.0, chunk=4)
    plain.second = None
    plain.load_state_dict(selection.state_dict())
    return plain


def inputs(real: torch.Tensor, size=SIZE) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    codes = [torch.randint(known, (*real.shape[:-1], 1), generator=generator) for known in size.cardinalities]
    return torch.cat([real, *(code.float() for code in codes)], -1)


@pytest.fixture
def context():
    return torch.randn(6, HIDDEN, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def at_knots():
    """Windows whose real values are knots: interpolation has nothing to add there."""
    values = make().knots[torch.randint(KNOTS, (6, 4, SIZE.real), generator=torch.Generator().manual_seed(1))]
    return inputs(values)


@pytest.fixture
def anywhere():
    return inputs(torch.randn(6, 4, SIZE.real, generator=torch.Generator().manual_seed(1)))


def test_at_its_knots_it_is_the_exact_selection(at_knots, context):
    selection = make()
    ours, theirs = selection(at_knots, context, run_directly), exact(selection)(at_knots, context, run_directly)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=ROUNDING, atol=ROUNDING)


def test_at_its_knots_every_parameter_has_the_gradient_of_the_exact_selection(at_knots, context):
    selection = make()
    plain = exact(selection)
    for one in (selection, plain):
        one(at_knots, context, run_directly)[0].square().sum().backward()
    for (name, ours), theirs in zip(selection.named_parameters(), plain.parameters(), strict=True):
        assert ours.grad.any(), name
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4 * float(theirs.grad.abs().max())), name


def test_its_error_falls_with_the_square_of_the_distance_between_knots(anywhere, context):
    errors = []
    for knots in (17, 33, 65, 129):
        selection = make(knots=knots)
        found = selection(anywhere, context, run_directly)[0] - exact(selection)(anywhere, context, run_directly)[0]
        errors.append(found.detach().square().mean().sqrt().item())
    assert errors[0] / errors[2] > 8
    assert errors[1] / errors[3] > 8


@pytest.mark.parametrize("far", [10.0, 100.0, 1e4])
def test_far_outside_the_training_values_it_follows_the_exact_selection(far, context):
    selection = make(knots=65)
    x = inputs(far * torch.randn(6, 4, SIZE.real, generator=torch.Generator().manual_seed(1)).sign())
    ours, theirs = selection(x, context, run_directly)[0], exact(selection)(x, context, run_directly)[0]
    assert (ours - theirs).abs().max() < 0.02 * theirs.abs().max()


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_results_do_not_depend_on_the_chunk(anywhere, context, chunk):
    expected = make()(anywhere, context, run_directly)
    found = make(chunk=chunk)(anywhere, context, run_directly)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=ROUNDING, atol=ROUNDING)


def test_a_row_alone_is_that_row_in_a_batch(anywhere, context):
    selection = make()
    whole = selection(anywhere, context, run_directly)[0]
    alone = selection(anywhere[2:3], context[2:3], run_directly)[0]
    assert torch.allclose(alone, whole[2:3], rtol=ROUNDING, atol=ROUNDING)


def test_dropout_has_one_mask_for_all_rows(context):
    selection = make(GroupSize(2), context=False, dropout=0.5).train()
    selection.weighing.dropout.p = 0.0  # weights have masks of their own for each row
    x = torch.zeros(50, 2)  # every row takes the same knot of each variable
    selected = selection(x, None, run_directly)[0]
    assert torch.allclose(selected, selected[:1].expand(50, -1)), "rows with equal values are equal"
    again = selection(x, None, run_directly)[0]
    assert not torch.allclose(selected, again), "each step has masks of its own"


@pytest.mark.parametrize(
    ("cardinalities", "rows", "sizes"),
    [
        pytest.param((), 10, [], id="none"),
        pytest.param((3, 3, 3, 3), 10, [3, 1], id="as many as fit"),
        pytest.param((2, 9, 2), 10, [1, 1, 1], id="padded to the largest of them"),
        pytest.param((2, 3, 900, 3), 10, [2, 1, 1], id="one that never fits stands alone"),
    ],
)
def test_categories_share_a_chunk_while_their_padded_codes_fit(cardinalities, rows, sizes):
    assert sizes_within(cardinalities, rows) == sizes


def test_a_variable_with_many_codes_is_computed_row_by_row(anywhere, context):
    rows = []

    class Recording(torch.nn.Module):
        in_double = False

        def forward(self, table):
            rows.append(table.shape[1])
            return table

    selection = make(chunk=1, knots=9)  # 9 rows: 40 codes do not fit
    selection.table = Recording()
    found = selection(anywhere, context, run_directly)[0]
    assert rows == [9] * SIZE.real + [3, 24, 7], "24 rows of the batch, not 40 codes"
    expected = make(chunk=100, knots=9)(anywhere, context, run_directly)[0]
    assert torch.allclose(found, expected, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize(
    "size", [SIZE, GroupSize(3), GroupSize(0, (3, 4))], ids=["both kinds", "real alone", "categories alone"]
)
def test_the_form_for_inference_is_the_same_function(size):
    selection = make(size, context=False).eval()
    x = inputs(torch.randn(6, 4, size.real, generator=torch.Generator().manual_seed(4)), size)
    for windows in (x, x[:, 0]):  # a sequence, and one row per series
        ours, theirs = TableSelection(selection)(windows, None, run_directly), selection(windows, None, run_directly)
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one, other, rtol=ROUNDING, atol=ROUNDING)


def test_normalized_rows_are_a_layer_norm_with_an_affine_part_per_variable_and_have_its_gradient():
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(*shape, dtype=torch.double, generator=generator) for shape in ((3, 5, 8), (3, 8), (3, 8))]
    tensors = [tensor.requires_grad_() for tensor in made]
    x, weight, bias = tensors
    plain = torch.nn.functional.layer_norm(x, (8,)) * weight.unsqueeze(1) + bias.unsqueeze(1)
    rows = normalized_rows(*tensors)
    assert torch.allclose(rows, plain, rtol=1e-12, atol=1e-12)
    incoming = torch.randn(3, 5, 8, dtype=torch.double, generator=generator)
    ours, theirs = (torch.autograd.grad(one, tensors, incoming) for one in (rows, plain))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-10)
