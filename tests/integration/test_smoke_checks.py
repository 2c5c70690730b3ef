"""What the smoke test of compose.yaml looks at: each rule holds for a healthy record, and trips when it is broken."""

from __future__ import annotations

import json
import uuid
from typing import Final

import asyncpg
import pytest

from deploy.smoke.checks import RULES, judge, script_of
from deploy.smoke.load import make_jobs

JOBS: Final = 20
ROW: Final = """
    INSERT INTO jobmaster.job (id, handler, args, status, priority, lane, run_at, attempt, max_attempts, dispatch,
                               timeout_s, queued_at, started_at, finished_at)
    SELECT id::uuid, 'work', '{}', 4, 3, 'default', now() - interval '2 s', 1, 4, 1, 60, now() - interval '3 s',
           now() - interval '1 s', now() FROM unnest($1::text[]) AS ids (id)"""
FIRST: Final = "(SELECT id FROM jobmaster.job ORDER BY id LIMIT 1)"
ATTEMPT: Final = "INSERT INTO jobmaster.attempt (job_id, attempt, dispatch, outcome, started_at) VALUES"
SABOTAGE: Final = {
    "accepted jobs that are not recorded": f"DELETE FROM jobmaster.job WHERE id = {FIRST}",
    "accepted jobs that have not ended": f"UPDATE jobmaster.job SET status = 3, finished_at = NULL WHERE id = {FIRST}",
    "accepted jobs that did not succeed": f"UPDATE jobmaster.job SET status = 5 WHERE id = {FIRST}",
    "jobs that nobody submitted": f"""
        INSERT INTO jobmaster.job SELECT (jsonb_populate_record(j, jsonb_build_object('id', gen_random_uuid()))).*
          FROM jobmaster.job AS j WHERE id = {FIRST}""",
    "jobs with more than one recorded success": f"{ATTEMPT} ({FIRST}, 1, 1, 'succeeded', now() - interval '1 s'), "
    f"({FIRST}, 2, 2, 'succeeded', now() - interval '1 s')",
    "jobs with a state and no matching end": f"UPDATE jobmaster.job SET finished_at = NULL WHERE id = {FIRST}",
    "jobs that were started after their end": f"{ATTEMPT} ({FIRST}, 1, 1, 'failed', now() + interval '1 s')",
    "jobs that were started before they were due": f"""
        UPDATE jobmaster.job SET started_at = run_at - interval '1 s' WHERE id = {FIRST}""",
    "jobs with more starts that count than they may have": f"UPDATE jobmaster.job SET attempt = 5 WHERE id = {FIRST}",
    "messages that were never sent": """
        INSERT INTO jobmaster.outbox (outbox_id, bucket_id, job_ids) VALUES (gen_random_uuid(), 'b', '{}')""",
}


async def problems_of(database: str, *changes: str) -> list[str]:
    """After ``changes`` to a record in which all is well."""
    ids = [str(uuid.uuid4()) for _ in range(JOBS)]
    connection = await asyncpg.connect(database)
    try:
        await connection.execute("DELETE FROM jobmaster.job")
        await connection.fetch(ROW, ids)
        for change in changes:
            await connection.execute(change)
        await connection.execute("SET search_path = jobmaster")
        await connection.execute("CREATE TEMP TABLE accepted (id uuid PRIMARY KEY)")
        await connection.fetch("INSERT INTO accepted SELECT id::uuid FROM unnest($1::text[]) AS ids (id)", ids)
        rows = [json.loads(await connection.fetchval(query)) for query in script_of()]
    finally:
        await connection.close()
    return judge({row["name"]: row["found"] for row in rows}, JOBS)


async def test_a_healthy_record_has_no_problem(database: str) -> None:
    assert await problems_of(database) == []


@pytest.mark.parametrize("rule", list(RULES))
async def test_each_rule_trips(rule: str, database: str) -> None:
    problems = await problems_of(database, SABOTAGE[rule])
    assert [problem for problem in problems if problem.startswith(f"{rule}: 1")], problems


async def test_too_few_submitted_jobs_are_a_problem_of_their_own() -> None:
    facts = {name: [] for name in RULES} | {"recorded": JOBS - 1}
    assert judge(facts, JOBS) == [f"{JOBS - 1} jobs are recorded, {JOBS} were to be submitted"]


async def test_what_was_not_looked_at_is_a_problem() -> None:
    assert len(judge({"recorded": JOBS}, JOBS)) == len(RULES)


def test_the_load_has_every_kind_of_job_and_the_same_ones_for_a_seed() -> None:
    jobs, again = make_jobs(100, seed=7), make_jobs(100, seed=7)
    assert {job["handler"] for job in jobs} == {"work", "flaky", "greet"}
    assert sum("delay_s" in job for job in jobs) == 10
    assert sum(job["args"].get("seconds", 0) >= 2 for job in jobs) == 10
    assert len({job["id"] for job in jobs}) == 100
    assert [job["args"] for job in jobs] == [job["args"] for job in again]
