import os
import signal

import pytest

from anchorhold_lab.cli.interrupt import Interruption


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_either_signal_is_a_request_and_is_remembered(number):
    before = signal.getsignal(number)
    with Interruption() as interruption:
        os.kill(os.getpid(), number)
        assert interruption.requested.is_set()
        assert Interruption.last_signal == number
    assert signal.getsignal(number) is before


def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_is_a_request_and_the_second_stops_at_once():
    before = signal.getsignal(signal.SIGINT)
    with Interruption() as interruption:
        assert not interruption.requested.is_set() and not interruption.is_new()
        press_ctrl_c()
        assert interruption.requested.is_set()
        assert interruption.is_new() and not interruption.is_new()
        with pytest.raises(KeyboardInterrupt):
            press_ctrl_c()
    assert signal.getsignal(signal.SIGINT) is before
