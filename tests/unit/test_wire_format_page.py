"""docs/wire-format.md says what the program does: its examples are decoded, its figures compared."""

from __future__ import annotations

import re

import msgspec
import pytest

from jm_core import api, api_control, api_retention, api_schedules, limits, wire
from jm_core.ids import HANDLER_PATTERN, NAME_PATTERN
from jm_core.intake import ClusterDefaults, NewJob, Origin, Rejection, read_message
from jm_core.model import PRIORITY_BY_LABEL, AttemptOutcome, JobStatus, OnConflict, ReturnReason
from jm_core.wire import Submission
from jm_master.ends_service import WAIT_MAX_S
from jm_nats.provision import PENDING_DUPLICATES_S
from jm_nats.subjects import INBOX_CHARS_MAX, Names, is_inbox
from tests.support import wire_page
from tests.support.wire_page import Received, Sent

ORIGIN = Origin("JM_shop_PENDING", 7, 1_893_484_800_000_000_000)
REPLY = msgspec.json.Decoder(api.Reply).decode


def read(text: bytes) -> list[NewJob | Rejection]:
    return read_message(text, ORIGIN, {}, ClusterDefaults())


def read_submission(text: bytes) -> None:
    refused = [job for job in read(text) if isinstance(job, Rejection)]
    assert not refused


def read_puback(text: bytes) -> None:
    assert set(msgspec.json.decode(text)) == {"stream", "seq"}


def read_result_reply(text: bytes) -> None:
    data = REPLY(text).data
    assert data is not None
    reply = msgspec.json.decode(bytes(data), type=api.ResultReply)
    assert reply.status in STATES


def read_error_reply(text: bytes) -> None:
    error = REPLY(text).error
    assert error is not None
    assert f"`{error.code}`" in wire_page.text()


READERS = {
    "submit": read_submission,
    "puback": read_puback,
    "receipts": wire.decode_receipts,
    "result-request": msgspec.json.Decoder(api.ResultRequest, strict=True).decode,
    "result-reply": read_result_reply,
    "error-reply": read_error_reply,
    "runs": wire.decode_runs,
    "events": wire.decode_events,
}
STATES = {status.label for status in JobStatus if status is not JobStatus.PENDING_SAVE} | {"unknown"}
JSON_BLOCKS = wire_page.blocks("json")
REFUSALS = [(sent.strip("`"), reason) for sent, reason in wire_page.table("sent")]


@pytest.mark.parametrize("block", JSON_BLOCKS, ids=[f"{n}-{b.kind}" for n, b in enumerate(JSON_BLOCKS)])
def test_every_json_example_is_read_by_the_program(block):
    READERS[block.kind](block.text.encode())


def test_every_kind_of_message_has_an_example():
    assert {block.kind for block in JSON_BLOCKS} == set(READERS)


def test_every_event_has_an_example():
    (block,) = wire_page.blocks("json", "events")
    shown = {type(event) for event in wire.decode_events(block.text.encode()).events}
    assert shown == {wire.Started, wire.Finished, wire.Quarantined, wire.Returned, wire.Progress}


@pytest.mark.parametrize(("sent", "reason"), REFUSALS)
def test_a_bad_job_is_refused_in_the_words_of_the_page(sent, reason):
    (refused,) = read(sent.encode())
    assert isinstance(refused, Rejection)
    assert refused.reason == reason


def test_the_receipt_that_is_shown_rejects_in_the_same_words():
    (block,) = wire_page.blocks("json", "receipts")
    shown = [receipt.reason for receipt in wire.decode_receipts(block.text.encode()).receipts if receipt.reason]
    assert set(shown) <= {reason for _, reason in REFUSALS}


def test_every_field_has_a_row_with_an_example_and_the_right_limits():
    figures = {
        "handler": {HANDLER_PATTERN},
        "args": {f"{limits.ARGS_BYTES_MAX} bytes", f"{limits.ARGS_DEPTH_MAX} levels"},
        "id": {"UUID"},
        "run_at": {f"year {limits.RUN_AT_YEAR_MIN} to {limits.RUN_AT_YEAR_MAX}"},
        "delay_s": {f"0 to {limits.DELAY_S_MAX:.0f}"},
        "lane": {NAME_PATTERN},
        "priority": set(PRIORITY_BY_LABEL),
        "max_attempts": {f"1 to {limits.ATTEMPTS_MAX}"},
        "timeout_s": {f"more than 0, at most {limits.TIMEOUT_S_MAX:.0f}"},
        "unique_key": {f"1 to {limits.UNIQUE_KEY_CHARS_MAX} characters"},
        "unique_for_s": {f"more than 0, at most {limits.UNIQUE_FOR_S_MAX:.0f}"},
        "on_conflict": set(OnConflict),
        "metadata": {f"{limits.METADATA_BYTES_MAX} bytes"},
        "trace": {"traceparent"},
    }
    rows = {name.strip("`"): (limit, example) for name, _, limit, _, example in wire_page.table("field")}
    assert list(rows) == list(Submission.__struct_fields__) == list(figures)
    for name, (limit, example) in rows.items():
        assert all(figure in limit for figure in figures[name]), name
        key = '"unique_key": "k", ' if name in ("unique_for_s", "on_conflict") else ""
        read_submission(f'{{"handler": "greet", {key}"{name}": {example.strip("`")}}}'.encode())


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("lane", ClusterDefaults().lane),
        ("priority", ClusterDefaults().priority.label),
        ("max_attempts", ClusterDefaults().max_attempts),
        ("timeout_s", ClusterDefaults().timeout_s),
    ],
)
def test_the_clusters_defaults_are_those_of_the_page(name, default):
    (left_out,) = (row[3] for row in wire_page.table("field") if row[0] == f"`{name}`")
    shown = f"{default:g}" if isinstance(default, float) else str(default)
    assert left_out.replace("`", "") == f"the handler's, else {shown}"


def test_the_sizes_are_those_of_the_program():
    sizes = {what: int(limit.split()[0]) for what, limit in wire_page.table("what")}
    assert sizes == {
        "one message": limits.MESSAGE_BYTES_MAX,
        "jobs in a message": limits.MESSAGE_JOBS_MAX,
        "`args` of a job": limits.ARGS_BYTES_MAX,
        "`metadata` of a job": limits.METADATA_BYTES_MAX,
        "result of a handler": limits.RESULT_BYTES_MAX,
        "kept of an error's text": limits.ERROR_BYTES_MAX,
    }
    for _, limit in wire_page.table("what"):
        if kib := re.search(r"(\d+) KiB", limit):
            assert int(limit.split()[0]) == int(kib[1]) * limits.KIB


@pytest.mark.parametrize(
    "phrase",
    [
        f"an array of 1 to {limits.MESSAGE_JOBS_MAX} jobs",
        f"may have up to {limits.NUMBER_CHARS_MAX} digits and an exponent up to 308",
        f"(down to -{limits.NUMBER_EXPONENT_MAX})",
        f"`args` may be nested {limits.ARGS_DEPTH_MAX} levels deep",
        f"that come within {PENDING_DUPLICATES_S:.0f} seconds",
        f"what holds after the {PENDING_DUPLICATES_S:.0f} seconds",
        f"up to {limits.RAW_KEPT_BYTES_MAX} of them",
        f"after `wait_s` seconds ({api.ResultRequest('').wait_s:.0f} if left out, {WAIT_MAX_S:.0f} at most)",
        f"it may be {INBOX_CHARS_MAX} characters long",
        f"the header `{wire.HEADER_MSG_ID}`",
        f"the header `{wire.HEADER_RECEIPT_TO}`",
        f"`{Names('shop').submit}`",
        f"`{Names('shop').api(api.OP_JOB_RESULT).replace('shop', '<cluster>')}`",
    ],
)
def test_a_figure_or_name_in_the_text_is_that_of_the_program(phrase):
    assert phrase in re.sub(r"\s+", " ", wire_page.text())


def test_every_state_and_receipt_is_explained():
    states = re.findall(r"`(\w+)`", " ".join(row[0] for row in wire_page.table("`status`")))
    assert set(states) == STATES
    receipts = {row[0].strip("`") for row in wire_page.table("status")}
    assert receipts == {wire.ReceiptStatus.RECORDED, wire.ReceiptStatus.DUPLICATE, wire.ReceiptStatus.REJECTED}


def test_every_operation_is_listed():
    modules = (api, api_control, api_retention, api_schedules)
    operations = {
        v for module in modules for name, v in vars(module).items() if name.startswith("OP_") and name != "OP_OF"
    }
    listed = re.findall(r"`([\w-]+)`", " ".join(row[0] for row in wire_page.table("operation")))
    assert sorted(listed) == sorted(operations | set(api_control.OP_OF.values()))


def test_the_arrays_of_internal_messages_have_the_order_of_the_program():
    run = [name.strip("`") for _, name, _ in wire_page.table("#")]
    assert run == list(wire.Run.__struct_fields__)
    events = {tag.strip("`"): re.findall(r"`(\w+)`", fields) for tag, _, fields in wire_page.table("tag")}
    kinds = (wire.Started, wire.Finished, wire.Quarantined, wire.Returned, wire.Progress)
    assert events == {kind.__struct_config__.tag: list(kind.__struct_fields__) for kind in kinds}
    last = wire_page.text()[wire_page.text().index("Outcomes are") :]
    assert set(re.findall(r"`(\w+)`", last)) == {*AttemptOutcome, *ReturnReason, "retry_in_s"}


def test_the_transcript_counts_its_bytes_right():
    sent = [step for step in wire_page.transcript() if isinstance(step, Sent) and step.actual_counts]
    assert [step.counts for step in sent] == [step.actual_counts for step in sent]
    assert len(sent) == 5


def test_the_inboxes_of_the_transcript_are_answered():
    named = re.findall(r"Jm-Receipt-To: (\S+)", wire_page.text())
    assert named
    assert all(is_inbox(subject) for subject in named)


def test_the_transcript_sends_what_the_program_reads():
    payloads = [step.lines[-1] for step in wire_page.transcript() if isinstance(step, Sent) and step.counts]
    answers = [step for step in wire_page.transcript() if isinstance(step, Received) and step.payload]
    assert [isinstance(job, NewJob) for body in payloads[:4] for job in read(body.encode())] == [
        True,
        True,
        True,
        False,
    ]
    msgspec.json.decode(payloads[4], type=api.ResultRequest)
    assert len(answers) == 7
