"""One job as whoever submitted it holds it."""

from typing import TYPE_CHECKING, Any

from jm_core.ids import parse_job_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jm_core.api import JobView
    from jm_nats.client import JobClient
    from jm_nats.results import JobProgress, Timeout


class JobHandle:
    """``client.handle(job_id)``: the client's questions about one job. Makes no request by itself."""

    def __init__(self, client: "JobClient", job_id: str) -> None:
        self.id = parse_job_id(job_id)
        self._client = client

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"

    async def result(self, type: Any = Any, *, timeout: "Timeout" = None) -> Any:  # noqa: A002, ASYNC109
        """As ``client.result``."""
        return await self._client.result(self.id, timeout=timeout, as_type=type)

    def progress(self, *, timeout: "Timeout" = None) -> "AsyncIterator[JobProgress]":
        """As ``client.progress``."""
        return self._client.progress(self.id, timeout=timeout)

    async def job(self) -> "JobView":
        """As ``client.job``."""
        return await self._client.job(self.id)
