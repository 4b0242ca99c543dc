"""Codes of categories: 0 is unknown, known values count from 1, and nothing but training values is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qat_tft.data.vocabulary import Vocabulary


@given(st.lists(st.text()), st.lists(st.text()))
def test_seen_values_get_distinct_codes_from_1_and_all_others_get_0(seen: list[str], others: list[str]) -> None:
    vocabulary = Vocabulary.fit("c", seen)
    codes = vocabulary.encode(sorted(set(seen))).tolist()
    assert codes == list(range(1, len(set(seen)) + 1))
    assert vocabulary.size == len(set(seen)) + 1
    for value, code in zip(others, vocabulary.encode(others).tolist(), strict=True):
        assert (code == 0) == (value not in seen)


@given(st.lists(st.text(), unique=True))
def test_a_vocabulary_survives_json(seen: list[str]) -> None:
    vocabulary = Vocabulary.fit("c", seen)
    assert Vocabulary.from_json("c", vocabulary.to_json()) == vocabulary


@pytest.mark.parametrize("broken", [None, {"a": 1}, ["a", 1], ["a", "a"]])
def test_a_broken_vocabulary_is_not_read(broken: object) -> None:
    with pytest.raises(ValueError, match="the vocabulary of 'c'"):
        Vocabulary.from_json("c", broken)
