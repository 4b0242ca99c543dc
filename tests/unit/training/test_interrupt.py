"""Ctrl-C is a request first and a command the second time."""

import os
import signal
import threading

import pytest

from qat_tft.training.interrupt import Interrupted, InterruptRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_only_remembered(number):
    with InterruptRequest() as request:
        os.kill(os.getpid(), number)
        assert request.requested


def test_the_second_signal_stops_at_once():
    with InterruptRequest():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_the_handlers_before_come_back_also_after_an_error():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError), InterruptRequest():
        raise RuntimeError
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_another_thread_trains_without_handlers():
    found: list[bool] = []

    def work() -> None:
        with InterruptRequest() as request:
            found.append(request.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


def test_an_interruption_says_how_to_go_on():
    assert "qat-tft train --resume mine" in str(Interrupted("mine"))
