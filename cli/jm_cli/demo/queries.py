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
