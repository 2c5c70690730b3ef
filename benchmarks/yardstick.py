"""The bare pipeline, run on the same servers in the same run."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nats
import nats.errors
from nats.js.errors import NotFoundError

from benchmarks.cluster import Cluster

DEFAULT = Path(__file__).resolve().parent.parent.parent / "shared" / "yardstick" / "limit.py"
REPLICATED = Path(__file__).resolve().parent / "replicated"
STREAMS = ("YARD_PEND", "YARD_RUN", "YARD_OUT")
STREAMS_TIMEOUT_S = 20.0


def path() -> Path | None:
    """``JM_YARDSTICK``, or the file beside the checkout; None when it is not there (then there is no ratio)."""
    found = Path(os.environ.get("JM_YARDSTICK", DEFAULT))
    return found if found.exists() else None


def measure(made: Cluster, *, jobs: int = 100_000, per_message: int = 200) -> dict[str, Any] | None:
    """Its JSON: ``enqueue_per_s lifecycle_per_s start_p50_ms start_p99_ms``. Its streams are replicated as ours are."""
    script = path()
    if script is None:
        return None
    command = [sys.executable, str(script), "--nats", made.nats.url, "--dsn", made.dsn]
    command += ["--jobs", str(jobs), "--per-message", str(per_message)]
    environment = dict(os.environ)
    if made.replicas > 1:
        environment |= {"PYTHONPATH": str(REPLICATED), "JM_BENCH_REPLICAS": str(made.replicas)}
    running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if made.replicas > 1:
            asyncio.run(_check_replicas(made, running))
        out, err = running.communicate()
    finally:
        running.kill()
    if running.returncode:
        raise SystemExit(f"the yardstick ended with {running.returncode}:\n{err[-4000:]}")
    measured: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return measured


async def _check_replicas(made: Cluster, running: subprocess.Popen[str]) -> None:
    """A yardstick on fewer replicas than ours would be none."""
    connection = await nats.connect(made.nats.url)
    deadline = time.monotonic() + STREAMS_TIMEOUT_S
    for name in STREAMS:
        while True:
            try:
                config = (await connection.jetstream().stream_info(name)).config
                break
            except (NotFoundError, nats.errors.TimeoutError):
                if running.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the yardstick has made no stream {name}") from None
            await asyncio.sleep(0.1)
        assert config.num_replicas == made.replicas, f"{name} has {config.num_replicas} replicas"
    await connection.close()
