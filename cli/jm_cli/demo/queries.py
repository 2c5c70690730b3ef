"""The SQL of the demo: what anybody with ``psql`` could ask. ``status``: 4 succeeded, 5 failed (see ``JobStatus``)."""

from typing import Final

PROGRESS: Final = """
SELECT count(*)                                            AS recorded,
       count(*) FILTER (WHERE status >= 4)                 AS ended,
       count(*) FILTER (WHERE status = 5)                  AS failed,
       count(*) FILTER (WHERE status IN (1, 2) AND attempt > 0)  AS retrying
FROM jobmaster.job
"""

HANDLERS: Final = """
SELECT handler,
       count(*)                                            AS jobs,
       count(*) FILTER (WHERE status = 4)                  AS succeeded,
       count(*) FILTER (WHERE status = 5)                  AS failed,
       count(*) FILTER (WHERE status NOT IN (4, 5))        AS other,
       count(*) FILTER (WHERE status >= 4)
           / nullif(extract(epoch FROM max(finished_at) - min(queued_at)), 0)::float8  AS jobs_per_s
FROM jobmaster.job
GROUP BY handler
ORDER BY handler = 'no-op', count(*) DESC
"""

# When a job could have started is when NATS had stored it, or its due time where that is later. A job that was tried
# again keeps only its last start, so the first-attempt ones are what says how long submitting to starting takes.
START_DELAYS: Final = """
SELECT handler,
       count(*) AS jobs,
       percentile_cont(0.5)  WITHIN GROUP (ORDER BY delay_s) * 1000 AS p50_ms,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY delay_s) * 1000 AS p99_ms
FROM (SELECT handler, extract(epoch FROM started_at - greatest(queued_at, run_at))::float8 AS delay_s
      FROM jobmaster.job
      WHERE attempt = 1 AND started_at IS NOT NULL) AS first_attempts
GROUP BY handler
"""

LATENESS: Final = """
SELECT count(*)                                                        AS jobs,
       count(*) FILTER (WHERE late_ms < 0)                             AS early,
       percentile_cont(0.5)  WITHIN GROUP (ORDER BY late_ms)           AS p50_ms,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY late_ms)           AS p99_ms
FROM (SELECT extract(epoch FROM started_at - run_at)::float8 * 1000 AS late_ms
      FROM jobmaster.job
      WHERE handler = 'reminder' AND started_at IS NOT NULL) AS reminders
"""

RETRIES: Final = """
SELECT count(DISTINCT job_id) FILTER (WHERE retry_in_s IS NOT NULL)  AS retried_jobs,
       count(*) FILTER (WHERE outcome = 'failed')                    AS failed_attempts,
       count(*)                                                      AS attempts
FROM jobmaster.attempt
"""

REJECTED: Final = "SELECT reason, count(*) AS messages FROM jobmaster.rejected GROUP BY reason ORDER BY 2 DESC"

TOTALS: Final = """
SELECT count(*)                                        AS files,
       coalesce(sum((result->>'lines')::int), 0)       AS lines,
       coalesce(sum((result->>'functions')::int), 0)   AS functions,
       coalesce(sum((result->>'classes')::int), 0)     AS classes
FROM jobmaster.job
WHERE handler = 'parse' AND status = 4
"""

LONGEST: Final = """
SELECT function.name, function.lines, job.args->>'path' AS path, function.line
FROM jobmaster.job AS job,
     jsonb_to_recordset(job.result->'longest') AS function (name text, line int, lines int)
WHERE job.handler = 'parse' AND job.status = 4
ORDER BY function.lines DESC, path, function.line
LIMIT 10
"""

RECORDS: Final = """
SELECT id::text, handler, args->>'path' AS path, status, attempt, error
FROM jobmaster.job
WHERE handler <> 'no-op'
"""

NO_OPS_MISSING: Final = """
SELECT wanted.id::text, coalesce(job.status, 0) AS status
FROM unnest($1::uuid[]) AS wanted (id)
LEFT JOIN jobmaster.job AS job ON job.id = wanted.id AND job.handler = 'no-op'
WHERE job.status IS DISTINCT FROM 4
"""

NO_OPS_COUNT: Final = "SELECT count(*) FROM jobmaster.job WHERE handler = 'no-op'"

VERSION: Final = "SELECT current_setting('server_version')"

# -- --chaos. `demo_execution` holds what the handlers themselves noted: see jm_cli.demo.executions.

IN_BUCKETS: Final = """
SELECT id::text, dispatch, status FROM jobmaster.job WHERE bucket_id = ANY($1) AND status IN (2, 3)
"""

# Each has ended, or has started under a later dispatch than it had.
ALL_ELSEWHERE: Final = """
SELECT coalesce(bool_and(job.status >= 4 OR (job.status = 3 AND job.dispatch > hit.dispatch)), true)
FROM unnest($1::uuid[], $2::int[]) AS hit (id, dispatch)
JOIN jobmaster.job AS job USING (id)
"""

UNSTARTED_IN_NATS: Final = "SELECT id::text, dispatch FROM jobmaster.job WHERE status = 2 AND run_at <= now()"

QUEUED_BETWEEN: Final = """
SELECT id::text
FROM jobmaster.job
WHERE queued_at BETWEEN to_timestamp($1::float8) AND to_timestamp($2::float8) AND run_at <= to_timestamp($2::float8)
"""

ALL_STARTED: Final = "SELECT bool_and(status >= 3) FROM jobmaster.job WHERE id = ANY($1::uuid[])"

ALL_ENDED: Final = "SELECT coalesce(bool_and(status >= 4), true) FROM jobmaster.job WHERE id = ANY($1::uuid[])"

EXECUTION_TABLE: Final = """
CREATE TABLE demo_execution (job_id uuid, dispatch int, pid int, started_at timestamptz, ended_at timestamptz)
"""

EXECUTION_INSERT: Final = "INSERT INTO demo_execution VALUES ($1::uuid, $2, $3, $4, $5)"

LOST: Final = """
SELECT count(*)
FROM unnest($1::uuid[]) AS submitted (id)
LEFT JOIN jobmaster.job AS job USING (id)
WHERE job.id IS NULL OR job.status < 4
"""

LOST_RAW: Final = """
SELECT count(*)
FROM unnest($1::text[]) AS submitted (path)
WHERE NOT EXISTS (SELECT FROM jobmaster.job
                  WHERE handler = 'parse' AND args->>'path' = submitted.path AND status >= 4)
"""

# A job's row takes one outcome; its attempts are one row each. Two successes of one job would show here.
RECORDED_TWICE: Final = """
SELECT count(*)
FROM (SELECT attempt.job_id
      FROM jobmaster.attempt AS attempt
      JOIN jobmaster.job AS job ON job.id = attempt.job_id
      WHERE attempt.outcome = 'succeeded'
      GROUP BY attempt.job_id
      HAVING count(*) > 1 OR bool_or(attempt.dispatch <> job.dispatch)) AS twice
"""

LOST_ATTEMPTS: Final = "SELECT count(*) FROM jobmaster.attempt WHERE outcome = 'worker_lost'"

EXECUTED: Final = """
SELECT (SELECT count(*)
        FROM demo_execution AS run
        JOIN jobmaster.job AS job ON job.id = run.job_id
        WHERE run.ended_at IS NOT NULL AND run.dispatch <> job.dispatch)              AS stale_refused,
       (SELECT count(*)
        FROM (SELECT FROM demo_execution WHERE ended_at IS NOT NULL
              GROUP BY job_id HAVING count(*) > 1) AS jobs)                           AS twice_run,
       (SELECT count(*)
        FROM (SELECT FROM demo_execution GROUP BY job_id HAVING count(*) > 1) AS jobs)  AS twice_started
"""

# The first start under a later dispatch, of each job that the fault hit and that had not ended by itself.
STARTED_ELSEWHERE: Final = """
SELECT count(*) AS jobs, extract(epoch FROM max(first.started_at) - $3::timestamptz)::float8 AS last_s
FROM (SELECT hit.id, min(start.started_at) AS started_at
      FROM unnest($1::uuid[], $2::int[]) AS hit (id, dispatch)
      JOIN (SELECT id AS job_id, dispatch, started_at FROM jobmaster.job
            UNION ALL SELECT job_id, dispatch, started_at FROM jobmaster.attempt
            UNION ALL SELECT job_id, dispatch, started_at FROM demo_execution) AS start
        ON start.job_id = hit.id AND start.dispatch > hit.dispatch AND start.started_at IS NOT NULL
      GROUP BY hit.id) AS first
"""

# The first start of each job that could not start while the fault lasted.
STARTED_AFTER: Final = """
SELECT count(*) AS jobs, extract(epoch FROM max(first.started_at) - $3::timestamptz)::float8 AS last_s
FROM (SELECT hit.id, min(start.started_at) AS started_at
      FROM unnest($1::uuid[], $2::int[]) AS hit (id, dispatch)
      JOIN (SELECT id AS job_id, started_at FROM jobmaster.job
            UNION ALL SELECT job_id, started_at FROM jobmaster.attempt
            UNION ALL SELECT job_id, started_at FROM demo_execution) AS start
        ON start.job_id = hit.id AND start.started_at IS NOT NULL
      GROUP BY hit.id
      HAVING min(start.started_at) > $3::timestamptz) AS first
"""
