"""What must hold after every scenario, whatever was killed on the way.

Named after the oracles of the field cases: O1 accepted means recorded, O2 nothing left running, O3 terminal is
terminal, O4 attempts bounded, O5 one accepted outcome, O6 NATS and Postgres agree, O7 no event loop was blocked, O9 no
planted secret is in any log. O8 (memory) is judged where something runs for long (`-m soak`), O10 (exit codes) where
commands end (tests/integration/test_cli_*.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import nats.errors

from jm_core.model import JobStatus
from tests.support.sql import Sql
from tests.support.streams import messages_left
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# In the DSN and in arguments of jobs of every cluster under test. Its signs make the escaped forms differ.
PLANTED: Final = "pl@nted-s3cr/t"
LOOP_BLOCKED: Final = "event loop was blocked"  # the worker's own words, when a timer is a second late
SHOWN_MAX: Final = 5

# Each finds the jobs that break a rule; none may be found. $1: the first terminal state.
_RULES: Final = {
    "O3: a terminal job has an end, an unfinished one has none": """
        SELECT id FROM job WHERE (finished_at IS NULL) = (status >= $1)""",
    "O3: nothing was started after the job had ended": """
        SELECT job.id FROM job JOIN attempt ON attempt.job_id = job.id
         WHERE job.status >= $1 AND attempt.started_at > job.finished_at""",
    "O4: starts that count stay within max_attempts": """
        SELECT id FROM job WHERE attempt - excused > max_attempts AND $1 > 0""",
    "O4: failures in the history stay within max_attempts": """
        SELECT job.id FROM job JOIN attempt ON attempt.job_id = job.id
         WHERE attempt.outcome IN ('failed', 'timed_out', 'worker_lost') AND $1 > 0
         GROUP BY job.id HAVING count(*) > job.max_attempts""",
    "O5: at most one success is recorded": """
        SELECT job_id AS id FROM attempt WHERE outcome = 'succeeded' AND $1 > 0 GROUP BY 1 HAVING count(*) > 1""",
    "O5: a history belongs to a job, and ends with its last dispatch": """
        SELECT attempt.job_id AS id FROM attempt LEFT JOIN job ON job.id = attempt.job_id
         WHERE (job.id IS NULL OR attempt.dispatch > job.dispatch) AND $1 > 0""",
}


async def assert_oracles(
    dsn: str, nats_url: str, cluster: str, accepted_ids: Iterable[str], *, may_wait: bool = False, timeout_s: float = 20
) -> None:
    """Wait until nothing moves any more, then check every oracle and report all that is broken at once.

    Args:
        accepted_ids: of all jobs for which somebody had a receipt.
        may_wait: some of them may still be ``on_master``, due later.
        timeout_s: for coming to rest.
    """
    async with Sql(dsn) as sql:
        await quiesced(sql, nats_url, cluster, may_wait=may_wait, timeout_s=timeout_s)
        problems = await missing(sql, accepted_ids)
        for rule, query in _RULES.items():
            found = await sql.rows(query, int(JobStatus.SUCCEEDED))
            if found:
                problems.append(f"{rule}: {len(found)} do not, e.g. {[str(row['id']) for row in found[:SHOWN_MAX]]}")
    assert not problems, "\n".join(problems)


async def missing(sql: Sql, accepted_ids: Iterable[str]) -> list[str]:
    """O1. That a job is in one state only is the primary key's work."""
    wanted = {str(job_id).lower() for job_id in accepted_ids}
    found = {str(row["id"]) for row in await sql.rows("SELECT id FROM job WHERE id = ANY($1::uuid[])", list(wanted))}
    lost = sorted(wanted - found)
    return [f"O1: {len(lost)} of {len(wanted)} accepted jobs are not recorded, e.g. {lost[:SHOWN_MAX]}"] if lost else []


async def quiesced(sql: Sql, nats_url: str, cluster: str, *, may_wait: bool = False, timeout_s: float = 20) -> None:
    """O2 and O6: return when no job is under way and no message is left, in Postgres or in NATS."""
    left: dict[str, int] = {}

    async def at_rest() -> bool:
        nonlocal left
        left = await under_way(sql, may_wait=may_wait)
        # Asked only when the cheap look says yes: a look at every stream costs NATS something.
        if not left:
            try:
                left = await messages_left(nats_url, cluster)
            except nats.errors.Error as error:  # an election
                left = {f"NATS does not say: {error}": 1}
        return not left

    await wait_until(at_rest, timeout_s, what="the cluster comes to rest", shown=lambda: f"left over: {left}")


async def under_way(sql: Sql, *, may_wait: bool = False) -> dict[str, int]:
    """Unfinished jobs by state, and outbox rows."""
    unfinished = ("in_bucket", "processing") if may_wait else ("on_master", "in_bucket", "processing")
    left = {state: jobs for state, jobs in (await sql.counts()).items() if state in unfinished}
    if outbox := await sql.value("SELECT count(*) FROM outbox"):
        left["outbox"] = outbox
    return left


def leaks(logs: Mapping[str, str], secret: str = PLANTED) -> list[str]:
    """O9: processes in whose log ``secret`` stands, as it is or escaped."""
    forms = {secret, quote(secret), quote(secret, safe=""), secret.replace("/", "\\/")}
    found = sorted(name for name, text in logs.items() if any(form in text for form in forms))
    return [f"O9: the planted secret is in the log of {name}" for name in found]


def blocked_loops(logs: Mapping[str, str]) -> list[str]:
    """O7: processes whose event loop stood still for a second or more. For scenarios that freeze nobody."""
    found = sorted(name for name, text in logs.items() if LOOP_BLOCKED in text)
    return [f"O7: the event loop of {name} was blocked" for name in found]
