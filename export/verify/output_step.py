"""The unit in which errors of a whole model are counted: what one code at the input of its head changes in a quantile.

An INT8 model and its reference differ where a value falls on the other side of a rounding boundary. If each of
the K inputs of the head, quantized with scale s, moved by one code in a random direction, quantile j would
move by `s * sqrt(sum over k of w_kj^2)` on average (root mean square). That is the output step. It is in the units of
the network's output and does not depend on the data.
"""

import numpy as np
import numpy.typing as npt
import torch

from qat_tft.quantization.layers import QuantizedLinear
from qat_tft.quantization.prepare import QATTemporalFusionTransformer

Steps = npt.NDArray[np.float64]


@torch.no_grad()
def output_step(qat: QATTemporalFusionTransformer) -> Steps | None:
    """Return the step of each quantile [Q], in units of the network's output; None where the head is not quantized."""
    head = qat.model.head
    if not isinstance(head, QuantizedLinear):
        return None
    codes, scale = head.rounding.integer(head.weight)
    weight = codes.double() * scale.double()  # [Q, K]
    return np.asarray((head.input.scale.double() * weight.square().sum(-1).sqrt()).numpy())
