import socket
import threading

import pytest

from jm_core import limits
from jm_nats.worker.failures import describe, headline


def raised(error):
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def fits(text):
    assert len(text.encode("utf-8")) <= limits.ERROR_BYTES_MAX
    assert "\0" not in text
    return text


class NeedsArguments(Exception):  # noqa: N818  (a stranger's class)
    def __init__(self, one, two):
        super().__init__(one)
        self.two = two
        self.lock = threading.Lock()


class BrokenText(Exception):  # noqa: N818
    def __str__(self):
        raise RuntimeError("no text for you")

    __repr__ = __str__


class ExitingText(Exception):  # noqa: N818
    def __str__(self):
        raise SystemExit(3)


class NoText(Exception):  # noqa: N818
    def __str__(self):
        return 5  # noqa: PLE0307  (that is the case)


class Falsy(Exception):  # noqa: N818
    def __bool__(self):
        raise RuntimeError("no truth for you")

    def __len__(self):
        return 0


class Hostile(Exception):  # noqa: N818
    @property
    def __cause__(self):
        raise RuntimeError("no cause for you")


def test_an_error_that_will_not_be_described_is_at_least_named():
    assert describe(Hostile("x")) == "Hostile: <it could not be described: RuntimeError>"


def test_an_error_is_its_class_its_message_and_where_it_was_raised():
    text = describe(raised(ValueError("no such mailbox")))
    first, *rest = text.splitlines()
    assert first == "ValueError: no such mailbox"
    assert any("in raised" in line for line in rest)


def test_an_error_without_a_message_is_its_class():
    assert headline(KeyError()) == "KeyError"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NeedsArguments("a", "b"), "NeedsArguments: a"),
        (BrokenText(), "BrokenText: <its text could not be made: RuntimeError>"),
        (ExitingText(), "ExitingText: <its text could not be made: SystemExit>"),
        (NoText(), "NoText: <its text could not be made: TypeError>"),
        (Falsy("x"), "Falsy: x"),
        (ValueError("a\0b"), "ValueError: a\\u0000b"),
        (ValueError("a\ud800b"), "ValueError: a\\ud800b"),
        (ValueError("ünï 😀"), "ValueError: ünï 😀"),
        (ValueError(b"\xff"), "ValueError: b'\\xff'"),
        (SystemExit(), "SystemExit"),
        (SystemExit(0), "SystemExit: 0"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (OSError(socket.socket), "OSError: <class 'socket.socket'>"),
    ],
    ids=lambda value: ascii(value) if isinstance(value, str) else "",
)
def test_any_error_has_a_safe_text(error, words):
    assert fits(describe(raised(error))).startswith(words)


@pytest.mark.parametrize("char", ["x", "😀", "\0", "\ud800", "\n"], ids=ascii)
def test_a_message_of_fifty_million_characters_is_cut_and_says_so(char):
    text = fits(describe(ValueError(char * 50_000_000)))
    assert "[cut, 50000000 characters]" in text or "[cut, " in text


def chain(length, link="__cause__"):
    error = ValueError("root")
    for number in range(length):
        following = RuntimeError(f"level {number}")
        setattr(following, link, error)
        error = following
    return error


@pytest.mark.parametrize("link", ["__cause__", "__context__"])
def test_a_chain_of_causes_is_told_in_order(link):
    text = describe(chain(2, link))
    assert [line for line in text.splitlines() if not line.startswith(" ")] == [
        "RuntimeError: level 1",
        "caused by RuntimeError: level 0",
        "caused by ValueError: root",
    ]


@pytest.mark.parametrize("link", ["__cause__", "__context__"])
def test_a_chain_of_a_thousand_is_cut_short(link):
    text = fits(describe(chain(1_000, link)))
    assert text.endswith("… [more causes]")
    assert "level 999" in text


def test_a_chain_that_bites_its_tail_ends():
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert fits(describe(one)).endswith("… [more causes]")


def test_a_context_that_was_suppressed_is_not_told():
    error = chain(1, "__context__")
    error.__suppress_context__ = True
    assert "root" not in describe(error)


def test_a_chain_of_errors_with_a_truth_of_their_own_is_told():
    error = ValueError("outer")
    error.__cause__ = Falsy("inner")
    assert "caused by Falsy: inner" in describe(error)


def test_a_group_names_its_first_members():
    text = headline(ExceptionGroup("several", [ValueError(str(n)) for n in range(100)]))
    assert text.startswith("ExceptionGroup: several (100 sub-exceptions) [ValueError: 0; ValueError: 1;")
    assert "ValueError: 5" not in text


@pytest.mark.parametrize("width", [1, 5])
def test_groups_in_groups_end(width):
    group = ExceptionGroup("leaf", [ValueError("x")])
    for _ in range(1_500):
        group = ExceptionGroup("nest", [group] * width)
    assert fits(describe(group)).startswith("ExceptionGroup: nest")


def test_a_traceback_of_a_thousand_frames_is_cut_to_the_innermost():
    def dive(depth):
        if not depth:
            raise ValueError("bottom")
        dive(depth - 1)

    with pytest.raises(ValueError, match="bottom") as caught:
        dive(800)
    text = fits(describe(caught.value))
    assert text.count("in dive") <= 20
    assert 'raise ValueError("bottom")' in text
