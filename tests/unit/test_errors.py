"""Errors carry what, where, allowed and next step, and survive the way out of a worker process."""

import pickle

import pytest

from qat_tft.errors import CheckFailed, DataError, QatTftError, TapeMismatchError, UserError, Way

WAYS = (Way("--gaps", "split with --gaps"), Way("--cache-dir", "move with --cache-dir", by_training=False))


def test_a_message_says_where_what_allowed_and_the_next_step_in_this_order() -> None:
    error = DataError("it is text", where="f.parquet", allowed="numbers", next_step="Convert it.")
    assert str(error) == "f.parquet: it is text. Allowed: numbers. Convert it."


def test_parts_that_are_not_given_leave_no_trace_in_the_message() -> None:
    assert str(DataError("it is text")) == "it is text."


def test_an_error_that_was_pickled_keeps_its_kind_and_all_parts() -> None:
    error = pickle.loads(pickle.dumps(DataError("a", where="b", allowed="c", next_step="d", ways=WAYS)))
    assert isinstance(error, DataError)
    assert (error.what, error.where, error.allowed, error.next_step, error.ways) == ("a", "b", "c", "d", WAYS)


def test_a_users_error_and_a_failed_check_have_their_own_exit_codes() -> None:
    assert (UserError("x").exit_code, CheckFailed("x").exit_code) == (2, 1)


def test_a_tape_mismatch_is_no_error_of_the_user() -> None:
    error = TapeMismatchError("x")
    assert isinstance(error, QatTftError)
    assert isinstance(error, RuntimeError)
    assert not isinstance(error, UserError)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        pytest.param(["--gaps", "--cache-dir"], "Or split with --gaps or move with --cache-dir.", id="both options"),
        pytest.param(["--gaps"], "Or split with --gaps.", id="one that is not trained for is left out"),
        pytest.param([], "Or train anew: `qat-tft train` can split with --gaps.", id="no option"),
    ],
)
def test_ways_out_are_those_that_the_command_has(options: list[str], told: str) -> None:
    error = DataError("it is text", next_step="Drop it.", ways=WAYS)
    assert error.message(options) == f"it is text. Drop it. {told}"


def test_a_way_out_may_be_the_only_next_step() -> None:
    assert str(DataError("it is text", ways=WAYS[:1])) == "it is text. Split with --gaps."
