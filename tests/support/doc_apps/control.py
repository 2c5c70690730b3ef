"""The application of docs/control.md, with the jobs that the page's operator acts on."""

from datetime import UTC, datetime, timedelta

import jm_nats
from jm_nats import JobMaster, NoRetry

jm = JobMaster("docs-control")
TOMORROW = datetime.now(UTC) + timedelta(days=1)


@jm.handler("send-email")
async def send_email(to: str = "") -> str:
    if not to:
        raise NoRetry("nobody to send it to")
    return to


@jm.handler("report")
async def report(to: str = "") -> str:
    return to


async def names(client) -> dict:
    """Two tenants with as many jobs as the page says, one job that has failed, and reports for tomorrow."""
    for tenant, count in (("acme", 1204), ("initech", 12)):
        rows = [{"to": f"user{n}@{tenant}.example"} for n in range(count)]
        options = {"run_at": TOMORROW, "metadata": {"tenant": tenant}}
        await client.submit_many(send_email.jobs(rows, **options), wait="recorded")
    failed = await send_email.submit(client)
    async for _ in client.as_completed([failed.job_id]):
        pass
    reports = [await report.submit(client, run_at=TOMORROW, wait="recorded") for _ in range(4)]
    return {
        "job_id": reports[0].job_id,
        "at": TOMORROW + timedelta(days=1),
        "Action": jm_nats.Action,
        "JobFilter": jm_nats.JobFilter,
    }
