"""A mailbox that cannot be reached for a moment loses no message, and has none twice."""

import pytest

ray = pytest.importorskip("ray")

from anchorhold_lab.experiments.on_ray import mailbox as letters  # noqa: E402 (needs Ray)
from anchorhold_lab.experiments.on_ray.mailbox import Mailbox, Message, post  # noqa: E402

UNREACHED = ray.exceptions.ActorUnavailableError("Timed out waiting for seq_no 98", None)


class Faltering:
    """A mailbox that Ray fails to reach, before a message has arrived or after it, as often as is said."""

    def __init__(self, monkeypatch, times, arrives):
        self.box, self.times, self.arrives, self.tries = Mailbox(), times, arrives, 0
        self.post = self  # as actors' methods are called: mailbox.post.remote(message)
        monkeypatch.setattr(letters.ray, "get", lambda answer: answer())

    def remote(self, message):
        def answer():
            self.tries += 1
            falters = self.tries <= self.times
            if falters and not self.arrives:
                raise UNREACHED
            stopping = self.box.post(message)
            if falters:
                raise UNREACHED
            return stopping

        return answer


@pytest.mark.parametrize("arrives", [True, False])
def test_a_message_is_there_once_however_often_it_is_brought(monkeypatch, arrives):
    faltering = Faltering(monkeypatch, times=3, arrives=arrives)
    messages = [Message(5, None, number=number) for number in range(3)]
    for message in messages:
        assert post(faltering, message) is False
    assert faltering.box.take() == messages and faltering.tries == 6
    faltering.box.ask_to_stop()
    again = Message(6, None)  # another attempt's first
    assert post(faltering, again) is True and faltering.box.take() == [again]
    faltering.box.clear()
    assert post(faltering, again) is False and faltering.box.take() == [again]


def test_one_that_stays_away_is_told_of(monkeypatch):
    with pytest.raises(ray.exceptions.ActorUnavailableError, match="seq_no 98"):
        post(Faltering(monkeypatch, times=4, arrives=False), Message(0, None))
