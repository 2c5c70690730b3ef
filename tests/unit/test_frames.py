import pytest

from jm_nats.frames import header_block, publish_frame


def test_a_frame_is_what_the_protocol_says():
    header = header_block("id-1", {"Jm-Receipt-To": "_INBOX.ü"})
    text = "NATS/1.0\r\nNats-Msg-Id: id-1\r\nJm-Receipt-To: _INBOX.ü\r\n\r\n"
    assert header == text.encode()
    frame = publish_frame("jm.c.submit", "_INBOX.r.1", header, b"payload")
    assert frame == b"HPUB jm.c.submit _INBOX.r.1 %d %d\r\n%bpayload\r\n" % (len(header), len(header) + 7, header)


@pytest.mark.parametrize("subject", ["", " ", "a b", "a\r\nPUB x 0", "a.*", ">", "a..b", ".a", "a.", "a\tb", "a\n"])
def test_a_subject_that_is_another_one_on_the_wire_is_refused(subject):
    with pytest.raises(ValueError, match="cannot be published to"):
        publish_frame(subject, "r", b"", b"")


@pytest.mark.parametrize(
    ("msg_id", "headers"),
    [
        ("a\r\nEvil: 1", None),
        ("a\n", None),
        ("a", {"X": "1\r\n\r\n"}),
        ("a", {"X Y": "1"}),
        ("a", {"": "1"}),
        ("a", {"ü": "1"}),
    ],
)
def test_a_header_that_leaves_its_line_is_refused(msg_id, headers):
    with pytest.raises(ValueError, match=r"header"):
        header_block(msg_id, headers)
