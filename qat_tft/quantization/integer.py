"""From a calibrated QAT model to the model that is exported: int8 weights, and scales taken from its quantizers."""

from __future__ import annotations

import copy

from qat_tft.model.inference import cut_selections, tabulate_selections
from qat_tft.model.layers import replace_module
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.quantization.layers import QuantizedLinear
from qat_tft.quantization.lstm import QuantizedLSTM
from qat_tft.quantization.prepare import QATTemporalFusionTransformer, require_calibrated
from qat_tft.quantization.stored import StoredLinear, StoredLSTM


def integer_model(qat_model: QATTemporalFusionTransformer) -> TemporalFusionTransformer:
    """Return the model with every quantized layer in integer form, in evaluation mode.

    It computes what the QAT model computes in phase `frozen`, up to rounding; scales and zero points are those
    of the fake quantizers, not computed anew.

    Raises:
        CalibrationError: some range was never observed.
    """
    require_calibrated(qat_model)
    model = copy.deepcopy(qat_model.model).eval()
    tabulate_selections(model)
    cut_selections(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, QuantizedLinear | QuantizedLSTM | StoredLinear | StoredLSTM):
            replace_module(model, name, module.to_integer())
    return model
