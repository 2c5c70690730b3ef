"""Whether anything was lost: the record in Postgres against the receipts. ``judge`` is pure."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from deploy.smoke.cluster import wait_until
from deploy.smoke.shell import SmokeError, say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deploy.smoke.cluster import Cluster

SAY_EVERY_S = 5.0
Facts = dict[str, Any]

# Each must find nothing. `accepted`: ids for which there is a receipt; 4 and more: an end (jm_core.model.JobStatus).
RULES = {
    "accepted jobs that are not recorded": "SELECT id FROM accepted LEFT JOIN job USING (id) WHERE job.id IS NULL",
    "accepted jobs that have not ended": "SELECT id FROM accepted JOIN job USING (id) WHERE status < 4",
    "accepted jobs that did not succeed": "SELECT id FROM accepted JOIN job USING (id) WHERE status > 4",
    "jobs that nobody submitted": """
        SELECT id FROM job LEFT JOIN accepted USING (id) WHERE accepted.id IS NULL AND handler <> 'tick'""",
    "jobs with more than one recorded success": """
        SELECT job_id AS id FROM attempt WHERE outcome = 'succeeded' GROUP BY 1 HAVING count(*) > 1""",
    "jobs with a state and no matching end": "SELECT id FROM job WHERE (finished_at IS NULL) = (status >= 4)",
    "jobs that were started after their end": """
        SELECT job.id FROM job JOIN attempt ON attempt.job_id = job.id
         WHERE status >= 4 AND attempt.started_at > job.finished_at""",
    "jobs that were started before they were due": """
        SELECT id FROM accepted JOIN job USING (id) WHERE attempt = 1 AND started_at < run_at - interval '0.1 s'""",
    "jobs with more starts that count than they may have": """
        SELECT id FROM job WHERE attempt - excused > max_attempts""",
    "messages that were never sent": "SELECT outbox_id AS id FROM outbox",
}
FIGURES = {
    "accepted": "SELECT count(*) FROM accepted",
    "recorded": "SELECT count(*) FROM accepted JOIN job USING (id)",
    "succeeded": "SELECT count(*) FROM accepted JOIN job USING (id) WHERE status = 4",
    "started_more_than_once": "SELECT count(*) FROM accepted JOIN job USING (id) WHERE attempt > 1",
    "starts_that_a_death_cost": "SELECT count(*) FROM attempt WHERE outcome = 'worker_lost'",
    "longest_pause_s": """
        SELECT round(extract(epoch FROM max(pause)), 1) FROM (
            SELECT finished_at - lag(finished_at) OVER (ORDER BY finished_at) AS pause FROM accepted JOIN job USING (id)
        ) AS pauses""",
    "ticks_of_the_schedule": "SELECT count(*) FROM job WHERE handler = 'tick'",
}


ENDED = """
    SELECT count(*) FILTER (WHERE status >= 4), (SELECT count(*) FROM jobmaster.outbox)
      FROM jobmaster.job WHERE handler <> 'tick'"""


def wait_for_the_end(cluster: Cluster, accepted: int, timeout_s: float) -> float:
    """Until as many of the jobs have ended as were accepted, and nothing is under way; seconds waited."""
    last, said_s = "", 0.0

    def ended() -> bool:
        nonlocal last, said_s
        try:
            found = cluster.sql(ENDED)
        except SmokeError:
            return False  # Postgres comes up again
        done, waiting = map(int, found.split("|"))
        if found != last and time.monotonic() >= said_s + SAY_EVERY_S:
            said_s = time.monotonic()
            say(f"{done} of {accepted} have ended, {waiting} messages in the outbox")
        last = found
        return done >= accepted and waiting == 0

    return wait_until(ended, timeout_s, f"the end of {accepted} jobs", lambda: f"last seen: {last}")


def look(cluster: Cluster, accepted: Iterable[str]) -> Facts:
    """All rules and figures, read in one transaction."""
    script = [
        "BEGIN ISOLATION LEVEL REPEATABLE READ;",
        "SET search_path = jobmaster;",
        "CREATE TEMP TABLE accepted (id uuid PRIMARY KEY);",
        "COPY accepted FROM STDIN;",
        *accepted,
        r"\.",
        *script_of(),
        "COMMIT;\n",
    ]
    rows = [json.loads(line) for line in cluster.sql("\n".join(script)).splitlines()]
    return {row["name"]: row["found"] for row in rows}


def script_of() -> list[str]:
    """One query for each rule and figure: a JSON object with its name and what it found."""
    lists = {
        name: f"SELECT coalesce(json_agg(id), '[]') FROM ({rule}) AS found"  # noqa: S608 - written above
        for name, rule in RULES.items()
    }
    return [
        f"SELECT json_build_object('name', '{name}', 'found', ({query}));" for name, query in (lists | FIGURES).items()
    ]


def judge(facts: Facts, wanted: int) -> list[str]:
    """What is wrong, one line each; nothing: all is well. A rule that was not looked at is wrong, too."""
    problems = []
    for name in RULES:
        found = facts.get(name)
        if found is None:
            problems.append(f"{name}: not looked at")
        elif found:
            problems.append(f"{name}: {len(found)}, e.g. {', '.join(found[:3])}")
    if facts.get("recorded") != wanted:
        problems.append(f"{facts.get('recorded')} jobs are recorded, {wanted} were to be submitted")
    return problems
