"""The application of docs/jobs.md."""

from datetime import timedelta

import msgspec

from jm_nats import JobContext, JobMaster

jm = JobMaster("docs-jobs")


class Invoice(msgspec.Struct):
    number: int
    total: float


@jm.handler("sync")
async def sync(user: int) -> int:
    return user


@jm.handler("welcome")
async def welcome(user: int) -> int:
    return user


@jm.handler("digest")
async def digest(user: int) -> int:
    return user


@jm.handler("invoice")
async def invoice(ctx: JobContext, number: int) -> dict:
    await ctx.progress(0.5, "adding up")
    return {"number": number, "total": 9.99}


async def names(client) -> dict:
    receipt = await invoice.submit(client, number=7)
    counted = await client.submit_many(sync.jobs([{"user": n} for n in range(3)]))
    return {"job_id": receipt.job_id, "job_ids": [r.job_id for r in counted], "timedelta": timedelta}
