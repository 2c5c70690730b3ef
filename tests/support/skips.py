"""In CI a test that is skipped for want of a tool fails: else it would be skipped for ever, and nobody would see it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

# What no package brings: rights of the machine, and a daemon.
EXPECTED: Final = ("no Docker daemon runs", "no small disk can be mounted here")


def complaint(reason: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """None: it may be skipped here."""
    expected = (*EXPECTED, *filter(None, [environment.get("JM_CI_WITHOUT")]))  # what .ci/run tried to get, in vain
    if environment.get("CI", "").lower() not in {"true", "1"} or any(words in reason for words in expected):
        return None
    return f"skipped in CI: {reason}; install what it needs (.ci/run, docs/dependencies.md), or run without CI=true"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, pytest.TestReport]:
    report: pytest.TestReport = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        problem = complaint(re.sub("^Skipped: ", "", said))
        if problem is not None:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} ({call.when}): {problem}"
    return report
