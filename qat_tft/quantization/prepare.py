"""The QAT model: the FP32 model with every matrix product quantized, run through the same segments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from qat_tft.checkpointing.segments import SegmentRunner, run_directly
from qat_tft.errors import CalibrationError
from qat_tft.model.folding import merge_second_into_gate
from qat_tft.model.layers import AffineVariables, VariableLinear, replace_module
from qat_tft.model.recurrence import LearnedSequence
from qat_tft.model.selection import InputLinear, VariableScale
from qat_tft.model.tabulated import IN_A_TABLE, Table, TabulatedSelection
from qat_tft.model.tft import Forecast, TemporalFusionTransformer
from qat_tft.quantization.bits import EIGHT_BITS, BitLayout, LayerKind
from qat_tft.quantization.layers import QuantizedLinear, QuantizedVariableLinear
from qat_tft.quantization.learned import LearnedQuantizer
from qat_tft.quantization.lstm import QuantizedLSTM
from qat_tft.quantization.products import INTEGER_STORAGE, Products
from qat_tft.quantization.ranges import ActivationQuantizer, Phase
from qat_tft.quantization.scheme import Scheme
from qat_tft.quantization.stored import (
    StoredAffine,
    StoredLayer,
    StoredLinear,
    StoredLSTM,
    StoredVariableLinear,
)
from qat_tft.quantization.tables import QuantizedTable
from qat_tft.quantization.weights import WeightBits, WeightRounding, weight_roundings

_QUANTIZED: dict[type[nn.Module], Callable[[Any, Scheme, WeightBits], nn.Module]] = {
    nn.Linear: QuantizedLinear,
    VariableLinear: QuantizedVariableLinear,
    nn.LSTM: QuantizedLSTM,
}

_STORED_PRODUCTS: dict[type[nn.Module], Callable[[Any, Scheme, WeightBits], nn.Module]] = {
    nn.Linear: lambda layer, _, weights: StoredLinear(layer, weights),
    VariableLinear: lambda layer, _, weights: StoredVariableLinear(layer, weights),
    nn.LSTM: lambda layer, _, weights: StoredLSTM(layer, weights),
}

_STORED: dict[type[nn.Module], Callable[[Any], nn.Module]] = {InputLinear: StoredLinear, AffineVariables: StoredAffine}

_WITH_CODES = (QuantizedLinear, QuantizedVariableLinear, QuantizedLSTM, StoredLinear, StoredVariableLinear, StoredLSTM)

_KINDS: dict[type[nn.Module], LayerKind] = {nn.LSTM: "lstm"}

LEFT_OUT = "left out by name"
"""Why a layer stays in floating point that `skip` names."""

_STAYS_FLOAT: dict[type[nn.Module], str] = {
    InputLinear: "works on the scaled raw columns, whose outliers would set the range; its weight has 8 bits",
    AffineVariables: "one multiplication and one addition per number, with weights of 8 bits",
    VariableScale: "elementwise part of a LayerNorm, and sums weighted by it",
    nn.LayerNorm: "elementwise, and sensitive to rounding",
    nn.Embedding: "a table look-up: no arithmetic to gain from",
    LearnedSequence: "a constant: no arithmetic to gain from",
}

LSTM_CELL = "LSTM cells"
IN_TABLES = "computed once for all: the file holds the table, whose rows have 8 bits"
"""Why the layers of a tabulated selection network's GRNs are not in the file."""

FRAME = "level of the window and linear path"
"""What stands around the network where a model has a frame."""

FLOAT_OPERATIONS: dict[str, str] = {
    FRAME: "one map of one column: next to no time, and rounding would cost what they carry past the network",
    "attention scores, and their product with the values": "both sides are activations: integers gain no time there, "
    "and no weight gets smaller",
    LSTM_CELL: "an integer cell chooses its ranges batch by batch, so that rows would influence each other",
    "softmax, ELU, sigmoid, sums and products of activations": "elementwise, and rounding around them costs time",
}
"""What computes in floating point in every INT8 file and is no layer with weights of its own, and why."""


class QATTemporalFusionTransformer(nn.Module):
    """A TFT that trains with the rounding of its INT8 file.

    The FP32 model is copied, each GRN's second Linear is merged into its gate, and each layer that multiplies by
    a weight is replaced by its fake-quantized form. It starts in phase `float`: see `set_phase`.

    Args:
        fp32_model: the trained model; it is not changed.
        scheme: the target profile's ranges.
        skip: names of modules, as `named_modules` of the merged model gives them, to leave in floating point.
        learned_ranges: whether the scales of activations are trained (`LearnedQuantizer`) instead of observed.
        products: `integer`, or `float` for integer storage: weights alone are rounded, and there are no ranges.
        layout: how many bits the weights of each layer have.

    Raises:
        ValueError: a name in `skip` or in the layout is no layer that would be quantized, or none is left to quantize.
        TypeError: the model has a layer of a kind that cannot be quantized and that `skip` does not name.
    """

    def __init__(
        self,
        fp32_model: TemporalFusionTransformer,
        scheme: Scheme,
        skip: frozenset[str] = frozenset(),
        *,
        learned_ranges: bool = False,
        products: Products = "integer",
        layout: BitLayout = EIGHT_BITS,
    ) -> None:
        super().__init__()
        self.scheme, self.products, self.layout = scheme, products, layout
        self.model = merge_second_into_gate(fp32_model)
        self._float_layers = _quantize(self.model, scheme, skip, products, layout)
        if not self.roundings():
            raise ValueError("every layer is left in floating point: there is nothing to quantize")
        if learned_ranges:
            for layer in self.quantized_layers():
                module = self.model.get_submodule(layer)
                module.input = LearnedQuantizer.like(module.input)  # type: ignore[arg-type]

    def forward(
        self, static: Tensor, historical: Tensor, future: Tensor, run_segment: SegmentRunner = run_directly
    ) -> Forecast:
        """Return the forecast; arguments are those of `TemporalFusionTransformer.forward`."""
        forecast: Forecast = self.model(static, historical, future, run_segment)
        return forecast

    def forward_with_checkpointing(
        self, static: Tensor, historical: Tensor, future: Tensor, use_checkpointing: bool
    ) -> Forecast:
        """Return what `forward` returns, with every segment recomputed in the backward pass if asked for."""
        return self.model.forward_with_checkpointing(static, historical, future, use_checkpointing)

    @property
    def quantiles(self) -> tuple[float, ...]:
        """The levels that the model forecasts."""
        return self.model.quantiles

    @property
    def phase(self) -> Phase:
        """The phase of the quantizers."""
        return next(iter(self.roundings().values())).phase

    def set_phase(self, phase: Phase | str) -> None:
        """Put every quantizer, and every layer of which only the weight is rounded, into a phase."""
        for module in self.model.modules():
            if isinstance(module, ActivationQuantizer | StoredLayer | QuantizedTable):
                module.phase = Phase(phase)

    def quantizers(self) -> dict[str, ActivationQuantizer]:
        """Return the activation quantizers by the name of the layer whose input they round."""
        return {
            name.removesuffix(".input"): module
            for name, module in self.model.named_modules()
            if isinstance(module, ActivationQuantizer)
        }

    def quantized_layers(self) -> list[str]:
        """Return the names of the layers whose products are quantized; none where products are in floating point."""
        return list(self.quantizers())

    def tables(self) -> dict[str, QuantizedTable]:
        """Return the tables of tabulated selection networks whose rows are rounded, by name."""
        return {name: module for name, module in self.model.named_modules() if isinstance(module, QuantizedTable)}

    def roundings(self) -> dict[str, ActivationQuantizer | StoredLayer | QuantizedTable]:
        """Return what decides by its phase whether a layer rounds, by the name of each layer that `skip` may name.

        That is the quantizer of the layer's input, the table or, where only its weight is rounded, the layer itself.
        """
        if self.products == "integer":
            return {**self.tables(), **self.quantizers()}
        stored = [name for name, reason in self._float_layers if reason == INTEGER_STORAGE]
        return {**self.tables(), **{name: self.model.get_submodule(name) for name in stored}}  # type: ignore[misc]

    def float_layers(self) -> list[tuple[str, str]]:
        """Return name and reason of every layer with parameters that stays in floating point."""
        return list(self._float_layers)

    def codes(self) -> dict[str, Tensor]:
        """Return the int8 codes of every weight that is trained with rounding, by its name; rows of tables aside."""
        found = {}
        for layer, module in self.model.named_modules():
            if isinstance(module, _WITH_CODES):
                for place, rounding in weight_roundings(module).items():
                    found[f"{layer}.weight{place}"] = rounding.integer(getattr(module, f"weight{place}"))[0]
        return found

    def low_bits(self) -> dict[str, int]:
        """Return the bits of each layer's weight that has fewer than eight."""
        return {
            name.rpartition(".")[0]: module.bits
            for name, module in self.model.named_modules()
            if isinstance(module, WeightRounding) and module.bits < 8
        }

    def left_out(self) -> tuple[str, ...]:
        """Return the names of the layers that `skip` named."""
        return tuple(name for name, reason in self._float_layers if reason == LEFT_OUT)


def ranges_of(layer: str, tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of a quantized layer's ranges in the state of a QAT model; none where it stayed float."""
    return [name for name in tensors if name.startswith(f"model.{layer}.input.")]


def state_for(model: QATTemporalFusionTransformer, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of a QAT model as one takes it that leaves more of its layers in floating point.

    The ranges and scales of those layers are dropped, and an LSTM's weights get the names that torch's own layer has.
    """
    state = dict(tensors)
    for layer in model.left_out():
        for name in tensors:
            if name.startswith((f"model.{layer}.input.", f"model.{layer}.rounding")):
                del state[name]
        for name, _ in model.model.get_submodule(layer).named_parameters():
            stored = f"model.{layer}.{name.removesuffix('_l0')}"
            if stored in state:
                state[f"model.{layer}.{name}"] = state.pop(stored)
    return state


def require_calibrated(model: QATTemporalFusionTransformer) -> None:
    """Check that every range has seen data and can be used.

    Raises:
        CalibrationError: some quantizer saw no finite batch or nothing but zeros, or its scale is not a positive finite
            number; the quantizers with the first of these faults are named.
    """
    faults = {name: quantizer.fault for name, quantizer in model.quantizers().items()}
    for fault in dict.fromkeys(filter(None, faults.values())):
        names = [name for name, found in faults.items() if found == fault]
        raise CalibrationError(
            f"{len(names)} of {len(faults)} quantizers were {fault}",
            where=", ".join(names[:5]) + (", ..." if len(names) > 5 else ""),
            allowed="ranges of finite activations that are not all zero, observed in every branch of the model",
            next_step="Calibrate the model on batches of the training part before quantizing or exporting it; "
            "`qat-tft train --use-qat` does",
        )


def _tabulated(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, TabulatedSelection)]


def _quantize(
    model: nn.Module, scheme: Scheme, skip: frozenset[str], products: Products, layout: BitLayout
) -> list[tuple[str, str]]:
    """Replace layers in place; return name and reason of those that compute in floating point."""
    forms = _QUANTIZED if products == "integer" else _STORED_PRODUCTS
    stays: list[tuple[str, str]] = []
    quantizable: set[str] = set()
    tabulated = tuple(f"{name}.{part}" for name in _tabulated(model) for part in IN_A_TABLE)
    for name, module in list(model.named_modules()):
        kind = type(module)
        if kind is Table:
            quantizable.add(name)
            if name in skip:
                stays.append((name, LEFT_OUT))
            else:
                replace_module(model, name, QuantizedTable())
            continue
        if not any(True for _ in module.parameters(recurse=False)):
            continue
        if name in tabulated:
            stays.append((name, IN_TABLES))
        elif kind in _STAYS_FLOAT:
            stays.append((name, _STAYS_FLOAT[kind]))
            if kind in _STORED:
                replace_module(model, name, _STORED[kind](module))
        elif name in skip:
            quantizable.add(name)
            stays.append((name, LEFT_OUT))
        elif kind not in _QUANTIZED:
            raise TypeError(f"{name} is a {kind.__name__}, which has no quantized form: name it in `skip`")
        else:
            quantizable.add(name)
            replace_module(
                model,
                name,
                forms[kind](module, scheme, WeightBits(layout.of(name, _KINDS.get(kind, "linear")), layout.learned)),
            )
            if products == "float":
                stays.append((name, INTEGER_STORAGE))
    for asked, what in ((skip, "leave out"), (layout.layers, "give other bits")):
        if unknown := sorted(set(asked) - quantizable):
            raise ValueError(f"there is no layer called {unknown[0]!r} to {what}; the layers are {sorted(quantizable)}")
    return stays
