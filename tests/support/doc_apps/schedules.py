"""The application of docs/schedules.md."""

from datetime import timedelta

from jm_nats import JobMaster

jm = JobMaster("shop")


@jm.handler("report")
async def report(days: int) -> int:
    return days


async def names(_client) -> dict:
    return {"timedelta": timedelta}
