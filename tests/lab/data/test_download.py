"""A file arrives whole, whatever the network does on the way, or not at all."""

import hashlib
import itertools
import socket
import time

import pytest

from anchorhold_lab.data.download import PAUSES, DownloadError, download
from anchorhold_lab.data.sources import Download
from tests.lab.data.mirror import serving

CONTENT = bytes(range(256)) * 1000
WANTED = Download("folder/thing.gz", len(CONTENT), hashlib.md5(CONTENT).hexdigest())
OTHER = bytes(reversed(CONTENT))


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def mirror():
    with serving() as made:
        made.files["thing.gz"] = CONTENT
        yield made


class Fetching:
    """A download into a fresh folder, with what it told and how long it would have waited."""

    def __init__(self, folder):
        self.target = folder / "thing.gz"
        self.part = folder / "thing.gz.part"
        self.told, self.paused = [], []

    def get(self, *mirrors, clock=time.monotonic):
        download(
            WANTED,
            self.target,
            [m if isinstance(m, str) else m.address for m in mirrors],
            told=lambda _, arrived: self.told.append(arrived),
            pause=self.paused.append,
            clock=clock,
        )

    def is_whole(self):
        return self.target.read_bytes() == CONTENT and not self.part.exists()


@pytest.fixture
def fetching(tmp_path):
    return Fetching(tmp_path)


def unused_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/"


def test_a_file_arrives_and_its_progress_is_told(mirror, fetching):
    fetching.get(mirror)
    assert fetching.is_whole()
    assert fetching.told[0] == 0 and fetching.told[-1] == len(CONTENT)
    assert fetching.told == sorted(fetching.told) and len(fetching.told) > 2
    assert mirror.asked == [("thing.gz", None)]
    assert fetching.paused == []


def test_a_dropped_connection_goes_on_where_it_stopped(mirror, fetching):
    mirror.faults = [("drop", 100_000), ("drop", 50_000)]
    fetching.get(mirror)
    assert fetching.is_whole()
    assert [wanted for _, wanted in mirror.asked] == [None, "bytes=100000-", "bytes=150000-"]


def test_a_slow_line_that_drops_often_is_never_given_up(mirror, fetching):
    mirror.faults = [("drop", 10_000)] * 20
    fetching.get(mirror)
    assert fetching.is_whole()
    assert len(mirror.asked) == 21


def test_what_arrived_in_an_earlier_call_is_used(mirror, fetching):
    fetching.part.write_bytes(CONTENT[:200_000])
    fetching.get(mirror)
    assert fetching.is_whole()
    assert mirror.asked == [("thing.gz", "bytes=200000-")]


def test_a_part_that_is_already_whole_needs_no_request(mirror, fetching):
    fetching.part.write_bytes(CONTENT)
    fetching.get(mirror)
    assert fetching.is_whole()
    assert mirror.asked == []


@pytest.mark.parametrize("leftover", [OTHER[:1000], OTHER, CONTENT + b"more"], ids=["short", "whole", "too long"])
def test_a_wrong_leftover_is_thrown_away(mirror, fetching, leftover):
    fetching.part.write_bytes(leftover)
    fetching.get(mirror)
    assert fetching.is_whole()
    assert mirror.asked[-1] == ("thing.gz", None)


def test_a_server_that_knows_no_ranges_sends_it_all_again(mirror, fetching):
    mirror.faults = [("drop", 1000), "whole"]
    fetching.get(mirror)
    assert fetching.is_whole()


def test_a_busy_server_is_asked_again_after_growing_pauses(mirror, fetching):
    mirror.faults = [503, 503, 429]
    fetching.get(mirror)
    assert fetching.is_whole()
    assert fetching.paused == list(PAUSES)


def test_a_server_that_stays_busy_is_given_up(mirror, fetching):
    mirror.faults = [503] * 100
    with pytest.raises(DownloadError, match=r"thing.gz could not be downloaded.*503 Service Unavailable"):
        fetching.get(mirror)
    assert fetching.paused == list(PAUSES)
    assert not fetching.target.exists()


def test_another_mirror_serves_where_the_first_lacks_the_file(mirror, fetching):
    with serving() as empty:
        fetching.get(empty, mirror)
    assert fetching.is_whole()
    assert fetching.paused == []
    assert len(empty.asked) == 1


def test_another_mirror_goes_on_where_the_first_broke_off(mirror, fetching):
    with serving() as first:
        first.files["thing.gz"] = CONTENT
        first.faults = [("drop", 70_000)]
        fetching.get(first, mirror)
    assert fetching.is_whole()
    assert mirror.asked == [("thing.gz", "bytes=70000-")]


def test_another_mirror_serves_where_the_first_has_other_content(mirror, fetching):
    with serving() as wrong:
        wrong.files["thing.gz"] = OTHER
        fetching.get(wrong, mirror)
    assert fetching.is_whole()
    assert mirror.asked == [("thing.gz", None)]


def test_half_a_file_from_a_wrong_mirror_does_not_spoil_the_right_one(mirror, fetching):
    with serving() as wrong:
        wrong.files["thing.gz"] = OTHER
        wrong.faults = [("drop", 1000), 404]
        fetching.get(wrong, mirror)
    assert fetching.is_whole()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (OTHER, "another file of this name"),
        (b"<html>Please log in</html>", "offers 26 bytes where 256000 were expected"),
        (CONTENT + b"more", "offers 256004 bytes"),
    ],
    ids=["same length", "log-in page", "too long"],
)
def test_wrong_content_is_refused_and_what_was_there_stays(mirror, fetching, content, said):
    fetching.target.write_bytes(b"old")
    mirror.files["thing.gz"] = content
    with pytest.raises(DownloadError, match=said):
        fetching.get(mirror)
    assert fetching.target.read_bytes() == b"old"
    assert fetching.paused == []


def test_a_file_that_is_nowhere_names_every_address(fetching):
    with serving() as one, serving() as two, pytest.raises(DownloadError) as caught:
        fetching.get(one, two)
    assert f"{one.address}thing.gz: answers 404" in str(caught.value)
    assert f"{two.address}thing.gz: answers 404" in str(caught.value)
    assert fetching.paused == []


def test_without_a_network_it_says_so(fetching):
    with pytest.raises(DownloadError, match="cannot be reached"):
        fetching.get(unused_address())
    assert fetching.paused == list(PAUSES)


def test_a_redirect_is_followed_and_what_has_arrived_is_still_used(mirror, fetching):
    with serving() as first:
        first.files["thing.gz"] = b"elsewhere"
        first.faults = [("redirect", f"{mirror.address}thing.gz")] * 2
        mirror.faults = [("drop", 100_000)]
        fetching.get(first)
    assert fetching.is_whole()
    assert mirror.asked == [("thing.gz", None), ("thing.gz", "bytes=100000-")]


BAD_ADDRESSES = (
    "ftp://127.0.0.1/x",
    "file:///etc/passwd",
    "data:,x",
    "http://[",
    "http://h:port/",
    "http://a b/",
    "http://h:99999/",
)


@pytest.mark.parametrize("address", BAD_ADDRESSES)
def test_a_redirect_to_anything_but_http_is_refused_at_once(mirror, fetching, address):
    mirror.faults = [("redirect", address)] * 100
    with pytest.raises(DownloadError, match=r"redirects to .*expected an address of http or https"):
        fetching.get(mirror)
    assert len(mirror.asked) == 1 and fetching.paused == []


def test_redirects_without_an_end_are_given_up(mirror, fetching):
    mirror.faults = [("redirect", "/thing.gz")] * 100
    with pytest.raises(DownloadError, match="redirects more than 10 times"):
        fetching.get(mirror)
    assert len(mirror.asked) == 11


def chunked(body):
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"-1\r\n" + CONTENT, "sends a chunk of -1 bytes"),
        (b"-5\r\n" + CONTENT, "sends a chunk of -5 bytes"),
        (b"many\r\n" + CONTENT, "broke off"),
        (b"ffffffffffff\r\n" + CONTENT, "broke off"),
        (b"3e800\r\n" + CONTENT + b"\r\n0\r\n" + b"X-More: and more\r\n" * 200_000, "far beyond the length"),
        (b"x" * 100_000, "broke off"),
    ],
    ids=["-1", "-5", "no number", "cut off", "endless trailers", "endless line"],
)
def test_chunks_that_make_no_sense_are_refused(mirror, fetching, body, said):
    fetching.target.write_bytes(b"old")
    mirror.faults = [("raw", chunked(body))] * 100
    with pytest.raises(DownloadError, match=said):
        fetching.get(mirror)
    assert fetching.target.read_bytes() == b"old"


def test_chunks_that_do_are_not(mirror, fetching):
    mirror.faults = [("raw", chunked(b"3e800\r\n" + CONTENT + b"\r\n0\r\n\r\n"))]
    fetching.get(mirror)
    assert fetching.is_whole()


def test_what_a_server_says_is_shown_without_what_a_terminal_would_obey(mirror, fetching):
    mirror.faults = [("raw", b"HTTP/1.1 404 \x1b[2J" + b"x" * 1000 + b"\r\n\r\n")]
    with pytest.raises(DownloadError, match=r"answers 404 \?\[2Jx+…") as caught:
        fetching.get(mirror)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300


def test_a_mirror_that_is_too_slow_is_given_up_and_what_arrived_is_kept(mirror, fetching):
    mirror.faults = [("drop", 20_000)] * 100
    minutes = itertools.count(step=60.0)  # for every look at the clock
    with pytest.raises(DownloadError, match=r"is too slow: \d+ bytes in 60 s, where 1000 a second are the least"):
        fetching.get(mirror, clock=lambda: next(minutes))
    assert len(mirror.asked) == 1 and fetching.paused == []
    assert CONTENT.startswith(fetching.part.read_bytes())


def test_a_byte_a_second_in_the_headers_is_too_slow_as_well(mirror, fetching):
    mirror.faults = [("raw", b"HTTP/1.1 200 OK\r\n" + b"X-More: " + b"x" * 50_000 + b"\r\n\r\n")] * 100
    minutes = itertools.count(step=60.0)
    with pytest.raises(DownloadError, match="is too slow"):
        fetching.get(mirror, clock=lambda: next(minutes))


def test_an_hour_in_which_the_command_itself_was_stopped_is_no_slowness(mirror, fetching):
    seconds = itertools.chain([0.0, 0.1, 0.2], itertools.count(3600.0, step=0.01))
    fetching.get(mirror, clock=lambda: next(seconds))
    assert fetching.is_whole()


def test_a_few_bytes_a_connection_are_not_worth_going_on(mirror, fetching):
    mirror.faults = [("drop", 1)] * 100
    with pytest.raises(DownloadError, match="the connection ended after 4 of 256000 bytes"):
        fetching.get(mirror)
    assert fetching.paused == list(PAUSES)


def test_a_mirror_cannot_begin_anew_for_ever(mirror, fetching):
    mirror.files["thing.gz"] = OTHER
    mirror.faults = [("drop", 1000), None] * 50
    with pytest.raises(DownloadError, match="another file of this name"):
        fetching.get(mirror)
    assert len(mirror.asked) == 4
