"""Every kind of job that cannot be accepted (field cases BR-101 to BR-117), as bytes on the wire."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from jm_core import limits

NUL: Final = "a\0b"
UUID: Final = "019acd3b-6b0a-7c3e-8e3c-0123456789ab"
OVERSIZED: Final = {"a": "x" * limits.ARGS_BYTES_MAX}
OVERSIZED_REASON: Final = f"the limit is {limits.ARGS_BYTES_MAX}; pass a reference instead"


class BadJob(NamedTuple):
    """``reason``: part of what is said about it."""

    name: str
    raw: bytes
    reason: str


def job(**fields: Any) -> bytes:
    return json.dumps({"handler": "noop", **fields}).encode()


def member(text: str) -> bytes:
    """A job with one more member, written as it is: what ``json.dumps`` would not write."""
    return b'{"handler":"noop",' + text.encode() + b"}"


def nested(depth: int) -> str:
    """``args`` of this depth."""
    return f'"args":{{"a":{"[" * (depth - 1)}{"]" * (depth - 1)}}}'


# Each can stand alone and inside an array, between good ones.
ELEMENTS: Final = [
    # BR-101: NUL, wherever text can be.
    BadJob("nul in args", job(args={"a": {"b": [NUL]}}), "field 'args.a.b[0]': contains a NUL character"),
    BadJob("nul in a key of args", job(args={NUL: 1}), "contains a NUL character"),
    BadJob("nul in metadata", job(metadata={"a": NUL}), "field 'metadata.a': contains a NUL character"),
    BadJob("nul in a key of metadata", job(metadata={NUL: "a"}), "contains a NUL character"),
    BadJob("nul in lane", job(lane=NUL), "lane 'a\\x00b' is not a valid name"),
    BadJob("nul in unique_key", job(unique_key=NUL), "field 'unique_key': contains a NUL character"),
    BadJob("nul in handler", json.dumps({"handler": NUL}).encode(), "is not a valid name"),
    BadJob("nul in id", job(id=NUL), "is not a UUID"),
    BadJob("nul in priority", job(priority=NUL), "is unknown; use one of very_low"),
    BadJob("a raw nul byte", b'{"handler":"noop","args":{"a":"\0"}}', "field 'args'"),
    # BR-104, BR-106, BR-107: numbers.
    *(BadJob(f"{n} in args", member(f'"args":{{"n":{n}}}'), "is not JSON") for n in ("NaN", "Infinity", "-Infinity")),
    *(BadJob(f"{n} in args", member(f'"args":{{"n":{n}}}'), "out of range") for n in ("1e400", "-1e400")),
    BadJob("an exponent too small", member('"args":{"n":1e-99999}'), "exponent beyond 324; send it as text"),
    BadJob("a number of 5000 digits", member(f'"args":{{"n":{"1" * 5000}}}'), "out of range"),
    BadJob(
        "numbers that are huge when written out",
        member(f'"args":{{"n":[{",".join(["1e308"] * 5_000)}]}}'),
        f"the limit is {limits.ARGS_BYTES_MAX}",
    ),
    # BR-105: options of the wrong kind.
    *(
        BadJob(f"{name} {value}", member(f'"{name}":{value}'), f"field '{name}': ")
        for name in ("priority", "delay_s", "timeout_s", "max_attempts")
        for value in ("NaN", '"5"', "-1", "1e309", "true", str(2**63), "[]", "{}", '""')
    ),
    BadJob("timeout_s 0", job(timeout_s=0), "field 'timeout_s': Expected `float` > 0.0"),
    BadJob("max_attempts 0", job(max_attempts=0), "field 'max_attempts': Expected `int` >= 1"),
    BadJob("max_attempts 1.5", job(max_attempts=1.5), "field 'max_attempts': Expected `int | null`, got `float`"),
    BadJob("run_at without offset", job(run_at="2030-01-01T09:00:00"), "add an offset"),
    BadJob("run_at of no calendar", job(run_at="2030-02-30T09:00:00Z"), "field 'run_at': "),
    BadJob("run_at a number", job(run_at=1893484800), "field 'run_at': "),
    BadJob("run_at in the year 9999", job(run_at="9999-12-31T23:59:59-12:00"), "is outside 1970 to 9998"),
    BadJob("run_at before 1970", job(run_at="0001-01-01T00:00:00Z"), "is outside 1970 to 9998"),
    BadJob("run_at and delay_s", job(run_at="2030-01-01T09:00:00Z", delay_s=1), "given together with run_at"),
    # BR-108, BR-109: depth.
    *(BadJob(f"depth {n}", member(nested(n)), "nested deeper than 100 levels") for n in (101, 1_100, 20_000)),
    BadJob("depth in an unknown field", member(f'"x":{"[" * 5_000}{"]" * 5_000}'), "nested deeper than 100 levels"),
    # BR-111, BR-117: size.
    BadJob("oversized args", job(args=OVERSIZED), OVERSIZED_REASON),
    BadJob("oversized metadata", job(metadata={"a": "x" * 9_000}), f"the limit is {limits.METADATA_BYTES_MAX}"),
    BadJob("unique_for_s without a key", job(unique_for_s=5), "field 'unique_for_s': given without unique_key"),
    BadJob("on_conflict of no kind", job(unique_key="k", on_conflict="x"), "field 'on_conflict': 'x' is unknown"),
    BadJob("a long unique_key", job(unique_key="x" * 201), "field 'unique_key': must be 1 to 200 characters"),
    # BR-113: not UTF-8, not text.
    BadJob("invalid utf-8 in args", b'{"handler":"noop","args":{"a":"\xff\xfe"}}', "field 'args'"),
    BadJob("invalid utf-8 in handler", b'{"handler":"\xff"}', "field 'handler'"),
    BadJob("half of a surrogate pair", member('"args":{"a":"\\ud800"}'), "field 'args'"),
    # BR-114: only an object can be arguments.
    *(
        BadJob(f"args {value}", member(f'"args":{value}'), "field 'args': Expected `object`")
        for value in ('"x"', "5", "[1]", "true", "1.5", '""', "[]")
    ),
    # BR-115: an id is a UUID or nothing.
    *(
        BadJob(f"id {value[:10]!r}", job(id=value), "is not a UUID; leave it out, or send a UUID")
        for value in (
            "1",
            "00123",
            "a:b",
            "a.b",
            "A",
            "x" * 300,
            "😀",
            "",
            " ",
            "{019acd3b-6b0a-7c3e-8e3c-0123456789ab}",
        )
    ),
    # BR-116: what is required, and of which kind.
    BadJob("no handler", b"{}", "field 'handler': is missing"),
    BadJob("handler null", b'{"handler":null}', "field 'handler': Expected `str`, got `null`"),
    BadJob("handler a number", b'{"handler":5}', "field 'handler': Expected `str`, got `int`"),
    *(
        BadJob(f"handler {name[:10]!r}", json.dumps({"handler": name}).encode(), "is not a valid name: it must match")
        for name in ("", " ", "a b", "-a", "a/b", "ä", "x" * 101, "noop\n")
    ),
    *(BadJob(f"lane {name!r}", job(lane=name), "is not a valid name") for name in ("", "a.b", "*", ">", "a b", "ä")),
    BadJob("metadata of numbers", job(metadata={"a": 1}), "field 'metadata"),
    BadJob("metadata an array", job(metadata=[]), "field 'metadata'"),
    # No job at all.
    *(
        BadJob(f"a job that is {text}", text.encode(), "not a job")
        for text in ("5", '"x"', "true", "null", "[]", "1.5")
    ),
    BadJob("words", b"nonsense", "not a job"),
]

# Each is a message of its own.
MESSAGES: Final = [
    BadJob("nothing", b"", "nothing where a job should be"),
    BadJob("white space", b" \n", "nothing where a job should be"),
    BadJob("no text", b"\xff\xfe\x00", "not a job"),
    BadJob("an empty array", b"[]", "an empty array"),
    BadJob("brackets that never close", member(f'"args":{"[" * 60_000}'), "field 'args'"),
    BadJob("two jobs without an array", job() + job(), "not a job"),
    BadJob("a million brackets", b"[" * 1_000_000, f"the limit is {limits.MESSAGE_BYTES_MAX}"),
    BadJob("half a million brackets", b"[" * 500_000, ""),
    BadJob("a message too large", b"[" + job(args={"a": "x" * 600_000}) + b"]", f"is {limits.MESSAGE_BYTES_MAX}"),
    BadJob("too many jobs", b"[" + b",".join([job()] * 501) + b"]", "501 jobs in one message, the limit is 500"),
]
