"""The worker: owns buckets, runs handlers, reports outcomes. It never touches Postgres."""

from jm_nats.worker.config import WorkerConfig
from jm_nats.worker.runtime import Worker

__all__ = ["Worker", "WorkerConfig"]
