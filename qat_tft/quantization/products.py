"""Which form the products of an INT8 file have: on integers, or in floating point over weights stored as integers."""

from __future__ import annotations

from typing import Literal

from qat_tft.quantization.scheme import scheme_for

Products = Literal["integer", "float"]
"""`integer`: 8-bit inputs times 8-bit weights. `float`: inputs as they are times weights of 8 bits, dequantized."""

INTEGER_FROM = 128
"""Least hidden size at which products on integers are faster than in floating point on every CPU that was measured;
below, what rounding the inputs costs exceeds what multiplying them gains (docs/decisions/039)."""

INTEGER_STORAGE = "integer storage: products in floating point, weights of 8 bits"
"""What a model with products in floating point is."""


def products_for(target: str, hidden: int) -> Products:
    """Return the form that makes a file for a target faster, by the size of the hidden state.

    TensorRT fuses what rounds the inputs into the kernels before, so its files have products on integers throughout.

    Raises:
        ConfigError: no target profile has that name.
    """
    return "integer" if scheme_for(target).explicit_pairs or hidden >= INTEGER_FROM else "float"
