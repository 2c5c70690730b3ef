-- name: table_blocks
SELECT (pg_relation_size('jobmaster.job'::regclass) / current_setting('block_size')::int)::int;

-- name: remove_jobs
-- Of the pages from $2 on and before $3: up to $5 jobs whose retention has passed ($4: seconds by status, from succeeded
-- on; NULL: never), with all that belongs to them. Only what has ended is looked at; what somebody else has locked is left
-- for the next visit, and what was requeued just now is found to wait again. A job that still holds a unique key stays.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), picked AS MATERIALIZED (
    SELECT id FROM jobmaster.job AS j
     WHERE j.ctid >= $2::text::tid AND j.ctid < $3::text::tid AND j.status > 3
       AND coalesce(j.finished_at, j.recorded_at) <= now() - ($4::float8[])[j.status - 3] * interval '1 second'
       AND (j.unique_until IS NULL OR j.unique_until <= now()) AND EXISTS (SELECT FROM term)
     LIMIT $5 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM jobmaster.job AS j USING picked WHERE j.id = picked.id AND j.status > 3 RETURNING j.id, j.status
), attempts AS (
    DELETE FROM jobmaster.attempt AS a USING gone WHERE a.job_id = gone.id
), actions AS (
    DELETE FROM jobmaster.job_action AS a USING gone WHERE a.job_id = gone.id
), counted AS (
    INSERT INTO jobmaster.retention AS r (kind, removed, removed_at)
    SELECT ($6::text[])[status - 3], count(*), now() FROM gone GROUP BY status
    ON CONFLICT (kind) DO UPDATE SET removed = r.removed + excluded.removed, removed_at = excluded.removed_at
), lying AS MATERIALIZED (
    SELECT extract(epoch FROM greatest(coalesce(j.finished_at, j.recorded_at) - now()
                                       + ($4::float8[])[j.status - 3] * interval '1 second',
                                       j.unique_until - now()))::float8 AS due_in_s
      FROM jobmaster.job AS j
     WHERE j.ctid >= $2::text::tid AND j.ctid < $3::text::tid AND j.status > 3
       AND ($4::float8[])[j.status - 3] IS NOT NULL
)
SELECT (SELECT count(*) FROM term) AS terms, (SELECT count(*) FROM gone) AS removed,
       count(*) FILTER (WHERE due_in_s <= 0) AS due, min(due_in_s) FILTER (WHERE due_in_s > 0) AS first_due_in_s
  FROM lying;

-- name: count_jobs
-- What `remove_jobs` would remove of these pages ($1 to $2; $3: seconds by status).
SELECT j.status, count(*) AS jobs FROM jobmaster.job AS j
 WHERE j.ctid >= $1::text::tid AND j.ctid < $2::text::tid AND j.status > 3
   AND coalesce(j.finished_at, j.recorded_at) <= now() - ($3::float8[])[j.status - 3] * interval '1 second'
   AND (j.unique_until IS NULL OR j.unique_until <= now())
 GROUP BY j.status;

-- name: remove_rejected
-- The oldest $2 of what is older than $3 seconds. The numbers grow with time: what is not old ends the look.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), oldest AS MATERIALIZED (
    SELECT rejected_id, rejected_at FROM jobmaster.rejected ORDER BY rejected_id LIMIT $2
), gone AS (
    DELETE FROM jobmaster.rejected AS r USING oldest AS o
     WHERE r.rejected_id = o.rejected_id AND o.rejected_at <= now() - $3::float8 * interval '1 second'
       AND EXISTS (SELECT FROM term)
    RETURNING 1
)
SELECT (SELECT count(*) FROM term) AS terms, (SELECT count(*) FROM gone) AS removed;

-- name: remove_buckets
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), old AS MATERIALIZED (
    SELECT bucket_id FROM jobmaster.bucket WHERE deleted_at <= now() - $3::float8 * interval '1 second' LIMIT $2
), gone AS (
    DELETE FROM jobmaster.bucket AS b USING old WHERE b.bucket_id = old.bucket_id AND EXISTS (SELECT FROM term)
    RETURNING 1
)
SELECT (SELECT count(*) FROM term) AS terms, (SELECT count(*) FROM gone) AS removed;

-- name: remove_skips
-- What did not become a job of a schedule; of a run of them, when its last is old enough.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), old AS MATERIALIZED (
    SELECT skip_id FROM jobmaster.schedule_skip WHERE last_at <= now() - $3::float8 * interval '1 second' LIMIT $2
), gone AS (
    DELETE FROM jobmaster.schedule_skip AS k USING old
     WHERE k.skip_id = old.skip_id AND k.last_at <= now() - $3::float8 * interval '1 second' AND EXISTS (SELECT FROM term)
    RETURNING 1
)
SELECT (SELECT count(*) FROM term) AS terms, (SELECT count(*) FROM gone) AS removed;

-- name: remove_actions
-- What operators did, once it is done. What became of a single job stays with that job.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), old AS MATERIALIZED (
    SELECT action_id FROM jobmaster.operator_action
     WHERE finished_at <= now() - $3::float8 * interval '1 second' LIMIT $2
), gone AS (
    DELETE FROM jobmaster.operator_action AS a USING old WHERE a.action_id = old.action_id AND EXISTS (SELECT FROM term)
    RETURNING 1
)
SELECT (SELECT count(*) FROM term) AS terms, (SELECT count(*) FROM gone) AS removed;

-- name: note_removed
-- Of the other tables: $2 rows of kind $3 are gone.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), noted AS (
    INSERT INTO jobmaster.retention AS r (kind, removed, removed_at)
    SELECT $3, $2, now() WHERE EXISTS (SELECT FROM term)
    ON CONFLICT (kind) DO UPDATE SET removed = r.removed + excluded.removed, removed_at = excluded.removed_at
)
SELECT count(*) AS terms FROM term;

-- name: count_side
SELECT (SELECT count(*) FROM jobmaster.rejected WHERE rejected_at <= now() - $1::float8 * interval '1 second') AS rejected,
       (SELECT count(*) FROM jobmaster.bucket WHERE deleted_at <= now() - $2::float8 * interval '1 second') AS buckets,
       (SELECT count(*) FROM jobmaster.schedule_skip
         WHERE last_at <= now() - $3::float8 * interval '1 second') AS skips,
       (SELECT count(*) FROM jobmaster.operator_action
         WHERE finished_at <= now() - $4::float8 * interval '1 second') AS actions;

-- name: load_sweep
SELECT chunk, passes, passed_at FROM jobmaster.retention_sweep;

-- name: save_sweep
-- $3: this ends a pass.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), saved AS (
    UPDATE jobmaster.retention_sweep
       SET chunk = $2, passes = passes + CASE WHEN $3 THEN 1 ELSE 0 END, passed_at = CASE WHEN $3 THEN now() ELSE passed_at END
     WHERE EXISTS (SELECT FROM term)
    RETURNING passes, passed_at
)
SELECT (SELECT count(*) FROM term) AS terms, saved.passes, saved.passed_at FROM (SELECT) AS one LEFT JOIN saved ON true;

-- name: load_removed
SELECT kind, removed, removed_at FROM jobmaster.retention;
