"""The bare pipeline, run on the same servers in the same run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster

DEFAULT = Path(__file__).resolve().parent.parent.parent / "shared" / "yardstick" / "limit.py"


def path() -> Path | None:
    """``JM_YARDSTICK``, or the file beside the checkout; None when it is not there (then there is no ratio)."""
    found = Path(os.environ.get("JM_YARDSTICK", DEFAULT))
    return found if found.exists() else None


def measure(made: Cluster, *, jobs: int = 100_000, per_message: int = 200) -> dict[str, Any] | None:
    """Its JSON: ``enqueue_per_s lifecycle_per_s start_p50_ms start_p99_ms``."""
    script = path()
    if script is None:
        return None
    command = [sys.executable, str(script), "--nats", made.nats.url, "--dsn", made.dsn]
    command += ["--jobs", str(jobs), "--per-message", str(per_message)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    measured: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return measured
