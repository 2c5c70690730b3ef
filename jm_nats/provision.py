"""The streams, consumers and KVs of a cluster and of its buckets, as this version needs them (DESIGN 3)."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from jm_nats.ensure import LAYOUT_KEY, Outcome, ensure_consumer, ensure_stream
from jm_nats.errors import AgentUnavailableError, LeaseConflictError, NoSuchConsumerError, NoSuchStreamError
from jm_nats.subjects import CTL_CONSUMER, PENDING_CONSUMER, RECORDER_CONSUMER, RUN_CONSUMER
from jm_nats.troubles import trouble

if TYPE_CHECKING:
    from jm_nats.connection import NatsLink
    from jm_nats.subjects import Names

log = logging.getLogger(__name__)

# Grows with every change of a configuration in this file.
LAYOUT: Final = 3

PENDING_DUPLICATES_S: Final = 120.0
BUCKET_DUPLICATES_S: Final = 300.0
EVENTS_DUPLICATES_S: Final = 120.0
# A message that was lost with its connection, on its way to the leader, is what waits so long.
MASTER_ACK_WAIT_S: Final = 20.0
BUCKET_ACK_WAIT_S: Final = 10.0  # a message that broke with its connection comes again after that
KV_DUPLICATES_S: Final = 120.0
MARKER_TTL_MIN_S: Final = 1.0  # the server's own bound
UNLIMITED: Final = -1
START_PATIENCE_S: Final = 30.0  # an election takes 4 to 9 s after a hard death, and a few may follow each other
START_PAUSE_S: Final = 0.5


async def ensure_cluster_at_start(
    link: NatsLink, names: Names, *, lease_s: float, replicas: int = 1
) -> dict[str, Outcome]:
    """As ``ensure_cluster``, with patience for servers that we are connected to, and that are electing their leaders:
    a cluster of NATS servers that has just started, or lost one, leaves requests to JetStream unanswered for seconds.
    """
    deadline_s = time.monotonic() + START_PATIENCE_S
    while True:
        try:
            return await ensure_cluster(link, names, lease_s=lease_s, replicas=replicas)
        except AgentUnavailableError as error:
            if not link.connected or time.monotonic() > deadline_s:
                raise
            trouble(log, "waiting for JetStream", {"nats": link.server, "problem": str(error)})
            await asyncio.sleep(START_PAUSE_S)


async def ensure_cluster(link: NatsLink, names: Names, *, lease_s: float, replicas: int = 1) -> dict[str, Outcome]:
    """What a cluster needs besides its buckets.

    Args:
        lease_s: how long a worker's heartbeat lives.
        replicas: at least so many; more that an operator asked for stay.

    Raises:
        AgentUnavailableError: no answer in time, or no leader at the moment.
        ConfigConflictError: see ``ensure_stream``.
        LeaseConflictError: workers live here by another lease.
    """
    await _check_lease(link, names, lease_s)
    front_door = _work_queue(names.pending_stream, [names.submit], PENDING_DUPLICATES_S, replicas)
    events = _work_queue(names.events_stream, [names.events_all], EVENTS_DUPLICATES_S, replicas)
    streams = [
        front_door,
        events,
        _kv(names.workers_kv, replicas, max_age_s=lease_s),
        _kv(names.buckets_kv, replicas),
        _kv(names.cluster_kv, replicas),
    ]
    outcomes = {stream.name or "": await ensure_stream(link, stream) for stream in streams}
    for stream, consumer in ((names.pending_stream, PENDING_CONSUMER), (names.events_stream, RECORDER_CONSUMER)):
        outcome = await ensure_consumer(link, stream, _worker_consumer(consumer, MASTER_ACK_WAIT_S))
        outcomes[f"{stream}/{consumer}"] = outcome
    return outcomes


async def _check_lease(link: NatsLink, names: Names, lease_s: float) -> None:
    """A lease is one for all of a cluster: the KV's max age. To change it under workers that live by another one would
    make them look dead, or the dead look alive.
    """
    try:
        info = await link.api(f"STREAM.INFO.KV_{names.workers_kv}")
    except NoSuchStreamError:
        return
    live_s = info["config"].get("max_age", 0) / 1e9
    if live_s == lease_s or not info["state"]["messages"]:
        return
    # Deleted and expired keys leave messages, too: ask for each.
    listed = await link.api(f"STREAM.INFO.KV_{names.workers_kv}", {"subjects_filter": ">"})
    prefix = f"$KV.{names.workers_kv}."
    for subject in listed["state"].get("subjects") or {}:
        answer = await link.api(f"STREAM.MSG.GET.KV_{names.workers_kv}", {"last_by_subj": subject})
        if not answer["message"].get("hdrs") or "data" in answer["message"]:
            raise LeaseConflictError(subject.removeprefix(prefix), live_s, lease_s)


async def ensure_bucket(link: NatsLink, names: Names, bucket: str, *, replicas: int = 1) -> dict[str, Outcome]:
    """A bucket's stream and its consumers ``run`` and ``ctl``.

    Raises:
        ConfigConflictError: see ``ensure_stream``.
    """
    stream = names.bucket_stream(bucket)
    outcomes = {stream: await ensure_stream(link, bucket_config(names, bucket, replicas))}
    for consumer, subject in ((RUN_CONSUMER, names.run(bucket)), (CTL_CONSUMER, names.ctl(bucket))):
        wanted = _worker_consumer(consumer, BUCKET_ACK_WAIT_S, subject)
        outcomes[f"{stream}/{consumer}"] = await ensure_consumer(link, stream, wanted)
    return outcomes


async def delete_bucket(link: NatsLink, names: Names, bucket: str) -> bool:
    """Delete the bucket's stream with all that is in it. False when there is none."""
    try:
        await link.api(f"STREAM.DELETE.{names.bucket_stream(bucket)}")
    except NoSuchStreamError:
        return False
    return True


async def delete_consumer(link: NatsLink, stream: str, consumer: str) -> bool:
    """Delete a consumer; whoever reads from it is told. False when there is none."""
    try:
        await link.api(f"CONSUMER.DELETE.{stream}.{consumer}")
    except (NoSuchStreamError, NoSuchConsumerError):
        return False
    return True


def bucket_config(names: Names, bucket: str, replicas: int = 1) -> StreamConfig:
    """A work-queue that also holds messages for later: the server moves ``.sched.<n>`` to ``.run`` when it is time."""
    subjects = [names.run(bucket), names.sched_any(bucket), names.ctl(bucket)]
    config = _work_queue(names.bucket_stream(bucket), subjects, BUCKET_DUPLICATES_S, replicas)
    return config.evolve(allow_msg_schedules=True, allow_rollup_hdrs=True)


def _work_queue(name: str, subjects: list[str], duplicates_s: float, replicas: int) -> StreamConfig:
    return StreamConfig(
        name=name,
        subjects=subjects,
        retention=RetentionPolicy.WORK_QUEUE,
        storage=StorageType.FILE,
        num_replicas=replicas,
        duplicate_window=duplicates_s,
        metadata=_metadata(),
    )


def _kv(name: str, replicas: int, *, max_age_s: float | None = None) -> StreamConfig:
    """The stream under a KV, with the settings every NATS client expects of one (ADR-8), plus expiry markers.

    nats.py's ``KeyValueConfig`` would do, but ``create_key_value`` fails where the KV exists with another setting.
    """
    return StreamConfig(
        name=f"KV_{name}",
        subjects=[f"$KV.{name}.>"],
        storage=StorageType.FILE,
        num_replicas=replicas,
        max_msgs_per_subject=1,
        max_age=max_age_s,
        discard=DiscardPolicy.NEW,
        duplicate_window=min(KV_DUPLICATES_S, max_age_s or KV_DUPLICATES_S),
        deny_delete=True,
        allow_rollup_hdrs=True,
        allow_direct=True,
        allow_msg_ttl=True,
        # A marker tells watchers that a key expired. It lasts as long as the key did: max_age ends it, too.
        subject_delete_marker_ttl=max(MARKER_TTL_MIN_S, max_age_s) if max_age_s else None,
        metadata=_metadata(),
    )


def _worker_consumer(name: str, ack_wait_s: float, subject: str | None = None) -> ConsumerConfig:
    return ConsumerConfig(
        durable_name=name,
        filter_subject=subject,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=ack_wait_s,
        max_ack_pending=UNLIMITED,
        max_deliver=UNLIMITED,
        metadata=_metadata(),
    )


def _metadata() -> dict[str, str]:
    return {LAYOUT_KEY: str(LAYOUT)}
