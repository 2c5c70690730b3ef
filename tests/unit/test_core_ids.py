import uuid

import pytest

from jm_core.errors import InvalidJobError, InvalidNameError
from jm_core.ids import derived_job_id, parse_handler_name, parse_job_id, parse_name

CANONICAL = "018f3b1e-0000-7000-8000-00000000abcd"
# BR-224: what must never become part of a subject, a stream name or a KV key.
HOSTILE = [
    "a.b", "a b", "*", ">", "a.*", "", ".", "a.", ".a", "a\r\nPUB x 0", "$JS.API.STREAM.DELETE.X", "x" * 41, "x" * 300,
    "ünï", "../x", "a/b", "a\\b", "a\0b", "a\n", "\n", "web:1", "pod~1", "a..b", "node&1", "😀", "a\ud800",
]  # fmt: skip


@pytest.mark.parametrize("name", ["a", "A", "web-1", "_kv_x", "0", "-", "x" * 40])
def test_a_legal_name_is_returned_unchanged(name):
    assert parse_name("lane", name) == name


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_any_other_name_is_refused_with_the_pattern(name):
    with pytest.raises(InvalidNameError, match="must match") as caught:
        parse_name("lane", name)
    assert caught.value.kind == "lane"
    assert len(str(caught.value)) < 250


def test_nothing_is_cleaned_so_two_names_never_meet():
    # BR-225: "a.b" and "a-b" are two things; one of them is legal, the other is no name at all.
    assert parse_name("lane", "a-b") == "a-b"
    with pytest.raises(InvalidNameError):
        parse_name("lane", "a.b")
    assert parse_name("lane", "A") != parse_name("lane", "a")


@pytest.mark.parametrize("name", ["mail", "billing.invoice.send", "a-b_c.d", "9lives", "os.system", "x" * 100])
def test_a_handler_name_may_have_dots(name):
    assert parse_handler_name(name) == name


@pytest.mark.parametrize("name", [".a", "-a", "a b", "", "x" * 101, "a\n", "a/b", "a:b", "ü", "a\0", "*"], ids=ascii)
def test_any_other_handler_name_is_refused(name):
    with pytest.raises(InvalidNameError, match="handler"):
        parse_handler_name(name)


@pytest.mark.parametrize("text", [CANONICAL, CANONICAL.upper(), "00000000-0000-0000-0000-000000000000"])
def test_a_uuid_in_any_case_is_stored_in_lower_case(text):
    assert parse_job_id(text) == text.lower()


@pytest.mark.parametrize(
    "text",
    ["", " ", "1", "00123", "a:b", "a.b", "A", "a", "x" * 300, "😀", "\0", "a\ud800", CANONICAL.replace("-", ""),
     f"{{{CANONICAL}}}", f"urn:uuid:{CANONICAL}", f" {CANONICAL}", f"{CANONICAL}\n", CANONICAL[:-1] + "g"],
    ids=ascii,
)  # fmt: skip
def test_anything_but_a_uuid_is_refused_with_a_remedy(text):
    with pytest.raises(InvalidJobError, match="36 characters") as caught:
        parse_job_id(text)
    assert caught.value.field == "id"
    assert len(str(caught.value)) < 250


def test_a_derived_id_is_a_uuid_of_version_7_with_the_time_of_its_message():
    at_ms = 1_900_000_000_123
    derived = uuid.UUID(derived_job_id("JM_c_PENDING", 7, 0, at_ms))
    assert (derived.version, derived.variant) == (7, uuid.RFC_4122)
    assert derived.int >> 80 == at_ms
