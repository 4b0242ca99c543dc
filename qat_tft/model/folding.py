"""Exact algebra on a trained model: what is constant at inference is computed once.

A GRN maps `ELU(...)` by a second Linear and the result by the gate's Linear. With only dropout between the two,
which does nothing at inference, they are one linear map: `G (S h + s) + g = (G S) h + (G s + g)`.
"""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import nn

from qat_tft.model.inference import cut_selections, tabulate_selections
from qat_tft.model.layers import GatedResidualNetwork, VariableLinear, merge_maps
from qat_tft.model.selection import SelectionWeights, VariableSelection

Model = TypeVar("Model", bound=nn.Module)


def merge_second_into_gate(model: Model) -> Model:
    """Return a copy in which every GRN's second Linear is part of its gate's Linear.

    Outputs are the same up to rounding wherever dropout is off. Where it is on, it now acts on the activation.
    """
    merged = copy.deepcopy(model)
    for module in merged.modules():
        if isinstance(module, GatedResidualNetwork | SelectionWeights | VariableSelection):
            second, gate = module.second, module.gate
            if second is not None:
                assert isinstance(second, nn.Linear | VariableLinear)
                assert isinstance(gate, nn.Linear | VariableLinear)
                merge_maps(second, gate)
                module.second = None
    return merged


def fold_for_inference(model: Model) -> Model:
    """Return an equal copy in evaluation mode: gates merged, selections in their form for inference.

    Tables come first: they are computed from the weights as they were trained.
    """
    folded = copy.deepcopy(model).eval()
    tabulate_selections(folded)
    folded = merge_second_into_gate(folded)
    cut_selections(folded)
    return folded
