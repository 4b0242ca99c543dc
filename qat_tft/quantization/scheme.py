"""Target profiles: which integer ranges a model is trained for, fixed by the machine that will run its file."""

from __future__ import annotations

from dataclasses import dataclass

from qat_tft.errors import ConfigError, ExportError

PAIR_LIMIT = 2**15 - 1
"""Largest sum that 16 bits hold: x86 CPUs without VNNI add 8-bit products in pairs there."""


FEW_BITS_UNSHOWN = "TensorRT has not been shown to read such a file, and its own 4-bit format is another"
"""Why a target has no weights of fewer than eight bits."""


@dataclass(frozen=True)
class IntegerRange:
    """The codes that a quantized tensor may take, both ends included."""

    low: int
    high: int

    @property
    def signed(self) -> bool:
        """Whether codes are stored as int8 with zero point 0, instead of as uint8 with a zero point of their own."""
        return self.low < 0

    def holds(self, other: IntegerRange) -> bool:
        """Whether every code of the other range lies in this one and is stored in the same type."""
        return self.signed == other.signed and self.low <= other.low and other.high <= self.high

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


@dataclass(frozen=True)
class Scheme:
    """How activations and weights are quantized for one target profile.

    Attributes:
        target: the profile's name.
        activations: codes of what is multiplied by weights: uint8 with a zero point, or int8 symmetric around zero.
        weights: symmetric codes (zero point 0), one scale per output column, stored as int8.
        standard_operators_only: whether the file may use nothing but operators of the ONNX standard.
        explicit_pairs: whether each QuantizeLinear and its DequantizeLinear must have one and the same scale.
        dynamic_lstm: whether the runtime has an integer LSTM, which chooses its activation ranges by itself.
        few_bits: whether weights may have fewer than eight bits.
    """

    target: str
    activations: IntegerRange
    weights: IntegerRange
    standard_operators_only: bool = False
    explicit_pairs: bool = False
    dynamic_lstm: bool = False
    few_bits: bool = True

    @property
    def pairs_fit(self) -> bool:
        """Whether no two products of these codes can add up beyond 16 bits, whatever the weights are."""
        activation = self.activations.high - self.activations.low  # signed ones are shifted to unsigned there
        return 2 * activation * max(self.weights.high, -self.weights.low) <= PAIR_LIMIT


_UNSIGNED = IntegerRange(0, 255)
_SIGNED = IntegerRange(-128, 127)  # all that QuantizeLinear gives; 0 stands for zero
_SEVEN_BITS = IntegerRange(-64, 63)  # 2 * 255 * 64 fits 16 bits, 2 * 255 * 127 does not
_EIGHT_BITS = IntegerRange(-127, 127)

_SCHEMES = {
    scheme.target: scheme
    for scheme in (
        Scheme("x86", _UNSIGNED, _SEVEN_BITS, dynamic_lstm=True),
        Scheme("x86-vnni", _UNSIGNED, _EIGHT_BITS, dynamic_lstm=True),
        Scheme("arm64", _UNSIGNED, _EIGHT_BITS),
        Scheme("tensorrt", _SIGNED, _EIGHT_BITS, standard_operators_only=True, explicit_pairs=True, few_bits=False),
        Scheme("portable", _UNSIGNED, _SEVEN_BITS, standard_operators_only=True),
    )
}

TARGETS = tuple(_SCHEMES)
"""Names of the target profiles."""


def scheme_for(target: str) -> Scheme:
    """Return the scheme of a target profile.

    Raises:
        ConfigError: no profile has that name.
    """
    if target not in _SCHEMES:
        raise ConfigError(
            f"unknown target profile {target!r}",
            where="quantization.target",
            allowed=", ".join(TARGETS),
            next_step="choose the profile of the machine that will run the file",
        )
    return _SCHEMES[target]


def require_safe(trained: Scheme, wanted: Scheme, *, where: str = "") -> None:
    """Check that a model trained for one target, that of the run `where`, may be exported for another.

    It may where every code it was trained with is one that the other target allows: the file then means the same.

    Raises:
        ExportError: some code is not; the message says which ranges differ.
    """
    kinds = (("activations", trained.activations, wanted.activations), ("weights", trained.weights, wanted.weights))
    for kind, codes, allowed in kinds:
        if not allowed.holds(codes):
            raise ExportError(
                f"a model trained for the target {trained.target!r} cannot be exported for {wanted.target!r}: its "
                f"{kind} have the codes {codes}, {wanted.target!r} allows {allowed}",
                where=where,
                allowed=", ".join(name for name, scheme in _SCHEMES.items() if _is_safe(trained, scheme)),
                next_step=f"Train with --target-profile {wanted.target}",
            )


def _is_safe(trained: Scheme, wanted: Scheme) -> bool:
    return wanted.activations.holds(trained.activations) and wanted.weights.holds(trained.weights)
