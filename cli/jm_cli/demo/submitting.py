"""Submits the workload, in every way there is."""

import asyncio
import itertools
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

import msgspec

from jm_cli.demo.accounting import Submitted
from jm_cli.demo.app import jm, no_op, parse, ping, reminder, step
from jm_cli.demo.workload import PINGS_PER_S, Workload, reminder_delays_s
from jm_core.errors import JmError
from jm_nats.client import JobClient

PONG_WAIT_S: Final = 10.0
SLOW_FILES_PER_S: Final = 60.0
SLOW_FILES: Final = 6  # at once, then
STEPS_PER_S: Final = 12.0
STEP_S: Final = (0.3, 1.0, 2.0, 3.0)


async def submit_work(client: JobClient, nats_url: str, work: Workload, done: Submitted) -> None:
    """Everything but the no-ops; ``done`` grows with what NATS has acknowledged.

    Raises:
        JmError: NATS did not take something; the rest is given up.
    """
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_submit_reminders(client, work, done))
            group.create_task(_submit_files(client, work, done))
            group.create_task(_submit_pings(client, work, done))
            group.create_task(_publish_raw(nats_url, work, done))
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from several


async def submit_slowly(
    client: JobClient, nats_url: str, work: Workload, done: Submitted, until: asyncio.Event
) -> None:
    """The same work, spread over the time that the chaos takes, and jobs that are at work for seconds ``until`` then.

    Slowly, because what a fault costs is to be seen, and not how long a queue is.
    """
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_submit_reminders(client, work, done))
            group.create_task(_submit_files(client, work, done, files_per_s=SLOW_FILES_PER_S))
            group.create_task(_submit_pings(client, work, done))
            group.create_task(_publish_raw(nats_url, work, done))
            group.create_task(_submit_steps(client, done, until))
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from several


async def submit_no_ops(client: JobClient, count: int, done: Submitted) -> None:
    """As fast as NATS takes them."""
    async for receipts in client.submit_stream(no_op.jobs({} for _ in range(count))):
        done.no_ops += (receipt.job_id for receipt in receipts)


async def _submit_files(
    client: JobClient, work: Workload, done: Submitted, *, files_per_s: float | None = None
) -> None:
    """In full messages. The flaky ones first, so that their retries run beside the others."""
    flaky = parse.jobs({"path": path, "fail_first": True} for path in work.flaky)
    async for receipts in client.submit_stream(flaky):
        done.flaky.update(receipt.job_id for receipt in receipts)
    at_once = len(work.plain) if files_per_s is None else SLOW_FILES
    for start in range(0, len(work.plain), max(1, at_once)):
        paths = work.plain[start : start + at_once]
        async for receipts in client.submit_stream(parse.jobs({"path": path} for path in paths)):
            done.plain.update((receipt.job_id, parse.name) for receipt in receipts)
        if files_per_s is not None:
            await asyncio.sleep(SLOW_FILES / files_per_s)


async def _submit_steps(client: JobClient, done: Submitted, until: asyncio.Event) -> None:
    """Of different lengths, so that at any moment some have just begun and some are about to end."""
    for number in itertools.count():
        if until.is_set():
            return
        receipt = await step.submit(client, seconds=STEP_S[number % len(STEP_S)])
        done.plain[receipt.job_id] = step.name
        await asyncio.sleep(1 / STEPS_PER_S)


async def _submit_reminders(client: JobClient, work: Workload, done: Submitted) -> None:
    """All at once, each with a due time of its own; the client packs them."""
    delays_s = reminder_delays_s(work.reminders)
    jobs = [reminder.job({"number": number}, delay=delay_s) for number, delay_s in enumerate(delays_s)]
    for receipt in await client.submit_many(jobs):
        done.plain[receipt.job_id] = reminder.name


async def _submit_pings(client: JobClient, work: Workload, done: Submitted) -> None:
    """One by one, as the requests of a web site come."""
    for number in range(work.pings):
        receipt = await ping.submit(client, number=number)
        done.plain[receipt.job_id] = ping.name
        await asyncio.sleep(1 / PINGS_PER_S)


async def _publish_raw(nats_url: str, work: Workload, done: Submitted) -> None:
    """What any program in any language can do: a socket, a handler's name and its arguments as JSON. No id."""
    payloads = [msgspec.json.encode({"handler": "parse", "args": {"path": path}}) for path in work.raw]
    server = urlsplit(nats_url)
    assert server.hostname is not None
    await publish_over_socket(server.hostname, server.port or 4222, jm.names.submit, payloads)
    done.raw += work.raw


async def publish_over_socket(host: str, port: int, subject: str, payloads: Iterable[bytes]) -> None:
    """NATS' text protocol (https://docs.nats.io/reference/reference-protocols/nats-protocol), all that is needed of it.

    Raises:
        JmError: the server refused.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b'CONNECT {"verbose": false}\r\n')
        for payload in payloads:
            writer.write(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))
        writer.write(b"PING\r\n")  # its PONG says that everything before was read
        async with asyncio.timeout(PONG_WAIT_S):
            while (line := await reader.readline()) != b"PONG\r\n":
                if not line or line.startswith(b"-ERR"):
                    raise JmError(f"NATS refused a plain publish: {line.decode(errors='replace').strip() or 'closed'}")
    finally:
        writer.close()
