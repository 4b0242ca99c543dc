"""Which form the products of an INT8 file have: on integers, or in floating point over weights stored as integers."""

from __future__ import annotations

from typing import Literal

from qat_tft.quantization.scheme import scheme_for

Products = Literal["integer", "float"]
"""`integer`: 8-bit inputs times 8-bit weights. `float`: inputs as they are times stored integers, dequantized."""

INTEGER_STORAGE = "integer storage: products in floating point, weights stored as integers"
"""What a model with products in floating point is."""
NO_FASTER = ", since products of integers are no faster at so small a hidden size (--products integer makes them)"
"""Why, where the size of the model decided it."""

INTEGER_FROM = 64
"""Least hidden size at which products on integers are faster than in floating point on CPUs without VNNI; below,
rounding the inputs costs more time than multiplying integers gains (docs/decisions/039)."""

_INTEGER_FROM = {"x86-vnni": 32, "tensorrt": 1}  # for targets that multiply integers faster


def products_for(target: str, hidden: int) -> Products:
    """Return the form in which a file for a target is faster, by the size of the model's hidden state.

    Raises:
        ConfigError: no target profile has that name.
    """
    return "integer" if hidden >= _INTEGER_FROM.get(scheme_for(target).target, INTEGER_FROM) else "float"
