"""Node with NATS's own packages from npm: a client in another language."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

# The last release that says it runs on Node 18 and 20.
PACKAGES: Final = ("@nats-io/transport-node", "@nats-io/jetstream")
VERSION: Final = "3.3.0"
SYSTEM_AUTHORITIES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
)  # Debian, Red Hat
TIMEOUT_S: Final = 60.0


def installed(config: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages, kept in pytest's cache from run to run."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs node and npm")
    cache = getattr(config, "cache", None)  # there is none with `-p no:cacheprovider`
    parent = cache.mkdir("nats-js") if cache else tmp_path_factory.mktemp("nats-js")
    ready = parent / VERSION
    if not ready.exists():
        fresh = Path(tempfile.mkdtemp(dir=parent))
        try:
            options = ["--prefix", str(fresh), "--no-save", "--no-package-lock", "--no-audit", "--no-fund"]
            command = ["npm", "install", *options, *(f"{name}@{VERSION}" for name in PACKAGES)]
            subprocess.run(
                command, cwd=fresh, check=True, capture_output=True, timeout=TIMEOUT_S, env=npm_environment()
            )
            with suppress(OSError):  # another run was quicker
                fresh.rename(ready)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return ready


def npm_environment() -> dict[str, str]:
    """As it is, and trusting what the system trusts, a company's own authority included (as uv does, pyproject.toml):
    Node brings a list of its own, and in an empty environment nothing else tells it of the system's.
    """
    bundle = next((path for path in SYSTEM_AUTHORITIES if Path(path).exists()), None)
    return {**({"NODE_EXTRA_CA_CERTS": bundle} if bundle else {}), **os.environ}


def run(folder: Path, text: str, **variables: str) -> str:
    """What a program of that text says; its packages are those of ``folder``."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        program = Path(own) / "submit.mjs"
        program.write_text(text)
        done = subprocess.run(
            ["node", str(program)],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout
