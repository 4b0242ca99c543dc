"""From a model to an equal one whose selection networks have another form."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor, nn

from qat_tft.model.forms import SelectionForm, variables_together
from qat_tft.model.layers import merge_maps, replace_module
from qat_tft.model.selection import VariableSelection
from qat_tft.model.tabulated import selection_network
from qat_tft.model.tft import TemporalFusionTransformer


def in_form(
    model: TemporalFusionTransformer, form: SelectionForm, *, knots: int, chunk: int | None = None
) -> TemporalFusionTransformer:
    """Return a copy of a model whose selection networks are exact, or tabulated at so many knots.

    Both have the same parameters, but that a variable's second map is part of its gate once a network is tabulated.

    Args:
        model: it is not changed.
        form: of the copy.
        knots: of each real variable of a tabulated network.
        chunk: variables computed together; None: what suits the form on a CPU.
    """
    copied = copy.deepcopy(model)
    together = variables_together(form, chunk)
    for name, module in list(copied.named_modules()):
        if isinstance(module, VariableSelection):
            replace_module(copied, name, _in_form(module, form, knots, together))
    return copied


@torch.no_grad()
def selection_sqnr(
    model: TemporalFusionTransformer, other: TemporalFusionTransformer, inputs: tuple[Tensor, Tensor, Tensor]
) -> float:
    """Return the ratio of signal to difference between the selected vectors of two models, in dB, the worst network's.

    Args:
        model: the reference; both compute in evaluation mode and are left as they were.
        other: a model of the same shape.
        inputs: the scaled static, historical and future tensors.
    """
    ours, theirs = (_selected(one, inputs) for one in (model, other))
    ratios = [
        10 * torch.log10((one - one.mean()).square().sum() / (one - theirs[name]).square().sum())
        for name, one in ours.items()
    ]
    return float(torch.stack(ratios).min())


def _selected(model: TemporalFusionTransformer, inputs: tuple[Tensor, Tensor, Tensor]) -> dict[str, Tensor]:
    """Return what each selection network puts out, in double precision."""
    found: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(partial(_keep, found, name))
        for name, module in model.named_modules()
        if isinstance(module, VariableSelection)
    ]
    training = model.training
    try:
        model.eval()(*inputs)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return found


def _keep(found: dict[str, Tensor], name: str, _: nn.Module, inputs: object, outputs: tuple[Tensor, Tensor]) -> None:
    found[name] = outputs[0].double()


def _in_form(selection: VariableSelection, form: SelectionForm, knots: int, chunk: int) -> VariableSelection:
    name, size, hidden = selection.name, selection.size, selection.norm.weight.shape[1]
    context, dropout = selection.weighing.context is not None, selection.dropout.p
    other = selection_network(form, name, size, hidden, context=context, dropout=dropout, chunk=chunk, knots=knots)
    merged = copy.deepcopy(selection)
    if merged.second is not None and other.second is None:
        merge_maps(merged.second, merged.gate)
        merged.second = None
    other.second = merged.second
    other.to(selection.norm.weight)
    other.load_state_dict(merged.state_dict())
    return other.train(selection.training)
