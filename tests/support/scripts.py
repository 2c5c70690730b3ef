"""A script in a process of its own: OpenTelemetry's providers, for one, are global to a process."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

from tests.support.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping


async def said_by(*command: str, env: Mapping[str, str], timeout_s: float = 60.0) -> Any:
    """The JSON of its last line, once it has ended well. It does not outlive us.

    Args:
        command: after `python`: `-c` and a script, or `-m` and a module, and what they take.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, env=env, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])
