"""The application of docs/operations.md: nothing but a cluster to look at."""

from jm_nats import JobMaster

jm = JobMaster("docs-operations")


@jm.handler("noop")
async def noop() -> None:
    pass


async def names(_client) -> dict:
    return {}
