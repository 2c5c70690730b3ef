"""A worker's settings, checked before anything starts."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

import uuid_utils

from jm_core import limits
from jm_core.cluster import check_bucket_counts
from jm_core.errors import InvalidSettingError, check_finite
from jm_core.ids import parse_name
from jm_core.model import Priority, WorkerMode


def default_worker_id() -> str:
    """``<host>-<pid>-<random>``, legal as a KV key. Host characters outside the pattern are dropped; the random part
    keeps two hosts that then look alike apart.
    """
    host = re.sub("[^A-Za-z0-9_-]", "", socket.gethostname().split(".")[0])[:20] or "worker"
    return f"{host}-{os.getpid()}-{uuid_utils.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Settings of one worker.

    Args:
        lanes: which lanes it opens buckets for; empty: those of the app's handlers and ``default``.
        slots: handlers running at the same time, shared by weight over the priorities.
        process_slots: of these, how many may be processes at the same time.
        drain_timeout_s: what running handlers get at a graceful exit.
        cancel_grace_s: how long a handler may take to end after it was cancelled, before it is reported anyway.
        lease_s: heartbeats missing this long and the buckets are lost; the same everywhere in a cluster.
        replicas: of the bucket's stream.
        buckets: how many it opens for a lane, by priority; what is not named is the cluster's number, else 1.
        mode: ``execution`` and ``full`` run jobs and adopt lost buckets, ``drain`` only adopts.

    Raises:
        InvalidSettingError, InvalidNameError.
    """

    worker_id: str = field(default_factory=default_worker_id)
    lanes: tuple[str, ...] = ()
    priorities: tuple[Priority, ...] = tuple(Priority)
    slots: int = limits.SLOTS
    process_slots: int = field(default_factory=lambda: os.cpu_count() or 1)
    drain_timeout_s: float = limits.DRAIN_TIMEOUT_S
    cancel_grace_s: float = 5.0
    heartbeat_s: float = limits.HEARTBEAT_S
    lease_s: float = limits.LEASE_S
    replicas: int = 1
    buckets: Mapping[Priority, int] = field(default_factory=dict)
    mode: WorkerMode = WorkerMode.EXECUTION

    def __post_init__(self) -> None:
        check_finite({name: getattr(self, name) for name in self.__dataclass_fields__})
        parse_name("worker", self.worker_id)
        for lane in self.lanes:
            parse_name("lane", lane)
        for name in ("slots", "process_slots", "replicas"):
            if getattr(self, name) < 1:
                raise InvalidSettingError(f"{name} is {getattr(self, name)}; it must be at least 1")
        check_bucket_counts(self.buckets)
        if self.slots > 10_000:
            raise InvalidSettingError(f"slots is {self.slots}, the limit is 10000; start more workers instead")
        for name in ("drain_timeout_s", "cancel_grace_s"):
            if getattr(self, name) < 0:
                raise InvalidSettingError(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.mode is WorkerMode.COORDINATOR:
            raise InvalidSettingError("mode is coordinator, which is no worker; run jm_master's Coordinator for that")
        if not self.priorities:
            raise InvalidSettingError("priorities is empty; a worker needs at least one")
        if self.heartbeat_s <= 0 or self.lease_s < 3 * self.heartbeat_s:
            raise InvalidSettingError(
                f"lease_s is {self.lease_s:g} with heartbeat_s {self.heartbeat_s:g}; a lease must be at least three "
                "heartbeats, or one late beat makes a live worker look dead"
            )
