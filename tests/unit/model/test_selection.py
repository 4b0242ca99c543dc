"""The folded, batched, chunked selection equals the paper's per-variable loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qat_tft.checkpointing.segments import run_directly
from qat_tft.model.selection import VariableSelection
from qat_tft.schema import GroupSize

EXACT = 1e-10  # double precision: only the order of additions differs


class PlainGRN(nn.Module):
    """Equations 2 to 5 of the paper for one vector, written out."""

    def __init__(self, inputs: int, hidden: int, outputs: int, context: bool) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.context = nn.Linear(hidden, hidden, bias=False) if context else None
        self.second = nn.Linear(hidden, hidden)
        self.gate = nn.Linear(hidden, outputs)
        self.value = nn.Linear(hidden, outputs)
        self.skip = nn.Linear(inputs, outputs) if inputs != outputs else nn.Identity()
        self.norm = nn.LayerNorm(outputs)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        hidden = self.first(x)
        if self.context is not None:
            hidden = hidden + self.context(context)
        hidden = self.second(F.elu(hidden))
        return self.norm(self.skip(x) + torch.sigmoid(self.gate(hidden)) * self.value(hidden))


class PlainSelection(nn.Module):
    """Equations 6 to 8 of the paper: embed each variable, weigh them all, add up one GRN each, in a loop."""

    def __init__(self, size: GroupSize, hidden: int, context: bool) -> None:
        super().__init__()
        self.size = size
        self.embeddings = nn.ModuleList(
            [nn.Linear(1, hidden) for _ in range(size.real)]
            + [nn.Embedding(cardinality, hidden) for cardinality in size.cardinalities]
        )
        self.weighing = PlainGRN(size.total * hidden, hidden, size.total, context)
        self.grns = nn.ModuleList(PlainGRN(hidden, hidden, hidden, False) for _ in range(size.total))

    def forward(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        embedded = []
        for variable, embedding in enumerate(self.embeddings):
            column = x[..., variable]
            embedded.append(embedding(column[..., None] if variable < self.size.real else column.long()))
        context = context[:, None] if context is not None and x.dim() == 3 else context
        weights = self.weighing(torch.cat(embedded, -1), context).softmax(-1)
        selected = sum(weights[..., variable, None] * grn(embedded[variable]) for variable, grn in enumerate(self.grns))
        return selected, weights


@torch.no_grad()
def fold(plain: PlainSelection, folded: VariableSelection) -> None:
    """Give the folded network the plain one's weights, by the algebra it is said to follow."""
    real, hidden = plain.size.real, plain.grns[0].first.out_features
    first, skip = plain.weighing.first, plain.weighing.skip
    side_by_side = torch.cat([first.weight, skip.weight]).view(-1, plain.size.total, hidden)
    bias = torch.cat([first.bias, skip.bias])
    for variable in range(plain.size.total):
        grn, embedding = plain.grns[variable], plain.embeddings[variable]
        folded.second.weight[variable], folded.second.bias[variable] = grn.second.weight, grn.second.bias
        # The gated linear unit of torch multiplies its first half by the sigmoid of its second.
        folded.gate.weight[variable] = torch.cat([grn.value.weight, grn.gate.weight])
        folded.gate.bias[variable] = torch.cat([grn.value.bias, grn.gate.bias])
        folded.norm.weight[variable], folded.norm.bias[variable] = grn.norm.weight, grn.norm.bias
        if variable < real:
            slope = embedding.weight[:, 0]
            folded.real_embedding.weight[variable], folded.real_embedding.bias[variable] = slope, embedding.bias
            folded.real_first.weight[variable] = grn.first.weight @ slope
            folded.real_first.bias[variable] = grn.first.weight @ embedding.bias + grn.first.bias
            folded.weighing.real.weight[:, variable] = side_by_side[:, variable] @ slope
            bias += side_by_side[:, variable] @ embedding.bias
        else:
            folded.category_first.weight[variable - real] = grn.first.weight
            folded.category_first.bias[variable - real] = grn.first.bias
    if plain.size.cardinalities:
        folded.category_embedding.table.weight.copy_(torch.cat([e.weight for e in plain.embeddings[real:]]))
        folded.weighing.category.weight.copy_(side_by_side[:, real:].flatten(1))
    (folded.weighing.real if real else folded.weighing.category).bias.copy_(bias)
    folded.weighing.second.load_state_dict(plain.weighing.second.state_dict())
    folded.weighing.gate.weight.copy_(torch.cat([plain.weighing.value.weight, plain.weighing.gate.weight]))
    folded.weighing.gate.bias.copy_(torch.cat([plain.weighing.value.bias, plain.weighing.gate.bias]))
    folded.weighing.norm.load_state_dict(plain.weighing.norm.state_dict())
    if plain.weighing.context is not None:
        folded.weighing.context.load_state_dict(plain.weighing.context.state_dict())


@pytest.mark.parametrize("context", [True, False], ids=["context", "no context"])
@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(GroupSize(7), id="reals"),
        pytest.param(GroupSize(0, (3, 5, 2, 9)), id="categories"),
        pytest.param(GroupSize(4, (3, 5)), id="both"),
        pytest.param(GroupSize(1), id="one real"),
        pytest.param(GroupSize(0, (4,)), id="one category"),
    ],
)
def test_folded_selection_equals_the_paper_s_loop_over_variables(size, chunk, context):
    torch.manual_seed(0)
    batch, time, hidden = 4, 5, 6
    plain = PlainSelection(size, hidden, context).double()
    folded = VariableSelection("test", size, hidden, context=context, dropout=0.0, chunk=chunk).double()
    fold(plain, folded)
    codes = [torch.randint(0, k, (batch, time, 1)) for k in size.cardinalities]
    x = torch.cat([torch.randn(batch, time, size.real, dtype=torch.double), *codes], -1)
    vector = torch.randn(batch, hidden, dtype=torch.double) if context else None
    for rows in (x, x[:, 0]):  # a sequence, and the static group's one row per series
        for ours, theirs in zip(folded(rows, vector, run_directly), plain(rows, vector), strict=True):
            assert ours.shape == theirs.shape
            assert torch.allclose(ours, theirs, rtol=EXACT, atol=EXACT)


def test_weights_add_up_to_one():
    torch.manual_seed(0)
    selection = VariableSelection("test", GroupSize(5), 8, context=False, dropout=0.0, chunk=2)
    _, weights = selection(torch.randn(3, 4, 5), None, run_directly)
    assert torch.allclose(weights.sum(-1), torch.ones(3, 4))
    assert (weights > 0).all()


def test_chunk_sizes_agree_to_rounding_in_values_and_gradients():
    single_precision = 1e-5  # additions over variables in another order

    def run(chunk: int) -> list[Tensor]:
        torch.manual_seed(0)
        selection = VariableSelection("test", GroupSize(11), 8, context=False, dropout=0.0, chunk=chunk)
        selected, _ = selection(torch.randn(6, 5, 11), None, run_directly)
        selected.square().sum().backward()
        return [selected, *(parameter.grad for parameter in selection.parameters())]

    for one, other in zip(run(2), run(11), strict=True):
        assert torch.allclose(one, other, rtol=single_precision, atol=single_precision * other.abs().max().item())


def test_nothing_of_the_size_of_all_embeddings_is_ever_built():
    rows, variables, hidden = 64, 40, 32
    selection = VariableSelection("test", GroupSize(variables), hidden, context=False, dropout=0.0, chunk=4)
    largest = 0

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else [result]:
                largest = max(largest, tensor.numel())
            return result

    x = torch.randn(rows, variables)
    with Largest(), torch.no_grad():
        selection(x, None, run_directly)
    assert largest < rows * variables * hidden / 4
