"""Target profiles: which integer ranges a model is trained for, fixed by the CPU that will run its file."""

from __future__ import annotations

from dataclasses import dataclass

from qat_tft.errors import ConfigError


@dataclass(frozen=True)
class IntegerRange:
    """The codes that a quantized tensor may take, both ends included."""

    low: int
    high: int


@dataclass(frozen=True)
class Scheme:
    """How activations and weights are quantized for one target profile.

    Attributes:
        target: the profile's name.
        activations: affine codes (scale and zero point), stored as uint8.
        weights: symmetric codes (zero point 0), one scale per output column, stored as int8.
        standard_operators_only: whether the file may use nothing but operators of the ONNX standard.
    """

    target: str
    activations: IntegerRange
    weights: IntegerRange
    standard_operators_only: bool


# Without VNNI, x86 CPUs add pairs of products of unsigned and signed bytes in 16 bits, and saturate:
# 2 * 255 * 127 does not fit, 2 * 255 * 64 does. So weights have 7 bits wherever such a CPU may run the file.
_SEVEN_BITS = IntegerRange(-64, 63)
_UNSIGNED = IntegerRange(0, 255)

_SCHEMES = {
    scheme.target: scheme
    for scheme in (
        Scheme("x86", _UNSIGNED, _SEVEN_BITS, standard_operators_only=False),
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
            next_step="choose the profile of the CPU that will run the file",
        )
    return _SCHEMES[target]
