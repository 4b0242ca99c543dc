"""Errors carry what, where, allowed and next step, and survive the way out of a worker process."""

import pickle

from qat_tft.errors import CheckFailed, DataError, QatTftError, TapeMismatchError, UserError


def test_a_message_says_where_what_allowed_and_the_next_step_in_this_order() -> None:
    error = DataError("it is text", where="f.parquet", allowed="numbers", next_step="Convert it.")
    assert str(error) == "f.parquet: it is text. Allowed: numbers. Convert it."


def test_parts_that_are_not_given_leave_no_trace_in_the_message() -> None:
    assert str(DataError("it is text")) == "it is text."


def test_an_error_that_was_pickled_keeps_its_kind_and_all_parts() -> None:
    error = pickle.loads(pickle.dumps(DataError("a", where="b", allowed="c", next_step="d")))
    assert isinstance(error, DataError)
    assert (error.what, error.where, error.allowed, error.next_step) == ("a", "b", "c", "d")


def test_a_users_error_and_a_failed_check_have_their_own_exit_codes() -> None:
    assert (UserError("x").exit_code, CheckFailed("x").exit_code) == (2, 1)


def test_a_tape_mismatch_is_no_error_of_the_user() -> None:
    error = TapeMismatchError("x")
    assert isinstance(error, QatTftError)
    assert isinstance(error, RuntimeError)
    assert not isinstance(error, UserError)
