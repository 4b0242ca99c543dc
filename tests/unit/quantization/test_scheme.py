"""Target profiles: what each promises, and for which other targets a trained model may be exported."""

from __future__ import annotations

import itertools

import pytest

from qat_tft.errors import ConfigError, ExportError
from qat_tft.quantization.scheme import TARGETS, IntegerRange, require_safe, scheme_for

SAFE = {
    ("x86", "x86-vnni"),
    ("x86", "arm64"),
    ("x86", "portable"),
    ("portable", "x86"),
    ("portable", "x86-vnni"),
    ("portable", "arm64"),
    ("x86-vnni", "arm64"),
    ("arm64", "x86-vnni"),
}


def largest_pair(activations: IntegerRange, weights: IntegerRange) -> int:
    """Largest magnitude of two products' sum, by trying the ends of both ranges; signed codes are shifted."""
    shift = activations.low
    ends = itertools.product((activations.low - shift, activations.high - shift), (weights.low, weights.high))
    return 2 * max(abs(activation * weight) for activation, weight in ends)


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_says_whether_two_products_fit_16_bits(target):
    scheme = scheme_for(target)
    assert scheme.pairs_fit == (largest_pair(scheme.activations, scheme.weights) <= 32767)
    assert scheme.pairs_fit == (target in ("x86", "portable"))


def test_codes_of_another_type_are_not_held_even_where_their_numbers_are():
    assert IntegerRange(-128, 127).holds(IntegerRange(-64, 63))
    assert not IntegerRange(-128, 127).holds(IntegerRange(0, 127))


@pytest.mark.parametrize("wanted", TARGETS)
@pytest.mark.parametrize("trained", TARGETS)
def test_a_model_is_exported_for_targets_that_allow_every_code_it_was_trained_with(trained, wanted):
    if trained == wanted or (trained, wanted) in SAFE:
        require_safe(scheme_for(trained), scheme_for(wanted))
    else:
        with pytest.raises(ExportError, match=f"{trained!r} cannot be exported for {wanted!r}"):
            require_safe(scheme_for(trained), scheme_for(wanted))


def test_a_refusal_names_the_codes_the_safe_targets_and_how_to_train():
    with pytest.raises(ExportError) as refused:
        require_safe(scheme_for("x86-vnni"), scheme_for("x86"))
    assert "weights have the codes -127..127, 'x86' allows -64..63" in refused.value.what
    assert refused.value.allowed == "x86-vnni, arm64"
    assert refused.value.next_step == "Train with --target-profile x86"
    with pytest.raises(ExportError, match=r"activations have the codes 0\.\.255, 'tensorrt' allows -128\.\.127"):
        require_safe(scheme_for("x86"), scheme_for("tensorrt"))


def test_an_unknown_target_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"'gpu'.*x86, x86-vnni, arm64, tensorrt, portable"):
        scheme_for("gpu")
