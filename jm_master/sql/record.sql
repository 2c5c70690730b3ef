-- name: record_successes
-- Clean first successes, the common case: one UPDATE and nothing else. The fence is id, dispatch and status; it says
-- BETWEEN because with IN (2, 3) the planner may take the index of what lies in buckets, which is slower here. What was
-- asked to be cancelled goes another way (sql/cancel.sql); that is a CASE because of a column without statistics the planner
-- believes that IS NULL holds for one row in 200, and reads the whole table for each event (measured: seconds a batch).
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), upd AS (
    UPDATE jobmaster.job AS j
       SET status = 4, attempt = 1, started_at = to_timestamp(u.started_at), finished_at = to_timestamp(u.finished_at),
           worker_id = ($2::text[])[u.worker], result = u.result::jsonb
      FROM unnest($3::text::uuid[], $4::text::int[], $5::text::float8[], $6::text::float8[], $7::text::int[], $8::text[])
           AS u(id, dispatch, started_at, finished_at, worker, result)
     WHERE j.id = u.id AND j.dispatch = u.dispatch AND j.status BETWEEN 2 AND 3
       AND CASE WHEN j.cancel_requested_at IS NULL THEN true ELSE false END AND EXISTS (SELECT FROM term)
    RETURNING j.id
)
SELECT (SELECT count(*) FROM term) AS terms, n AS updated,
       CASE WHEN n < $9 THEN (SELECT coalesce(array_agg(id::text), '{}') FROM upd) END AS ids
  FROM (SELECT count(*) AS n FROM upd) AS done;

-- name: record_ends
-- Every other end of a dispatch. status is the new one; 1 goes back to the master, to run after retry_in_s or at its
-- old time. A row in `attempt` is written only for what the fence let through, and none for outcome ''.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), upd AS (
    UPDATE jobmaster.job AS j
       SET status = u.status, attempt = greatest(j.attempt, u.attempt), excused = j.excused + u.excused,
           losses = j.losses + u.losses, result = u.result::jsonb, worker_id = ($2::text[])[u.worker],
           run_at = CASE WHEN u.status = 1 AND u.retry_in_s IS NOT NULL
                         THEN now() + u.retry_in_s * interval '1 second' ELSE j.run_at END,
           bucket_id = CASE WHEN u.status = 1 THEN NULL ELSE j.bucket_id END,
           started_at = coalesce(to_timestamp(u.started_at), j.started_at),
           finished_at = CASE WHEN u.status > 3 THEN coalesce(to_timestamp(u.finished_at), now()) END,
           error = CASE WHEN u.status = 4 THEN NULL ELSE coalesce(u.error, j.error) END
      FROM unnest($4::uuid[], $5::int[], $6::int[], $7::smallint[], $8::text[], $9::int[], $10::float8[], $11::float8[],
                  $12::text[], $13::text[], $14::float8[], $15::int[], $16::int[])
           AS u(id, dispatch, attempt, status, outcome, worker, started_at, finished_at, result, error, retry_in_s,
                excused, losses)
     WHERE j.id = u.id AND j.dispatch = u.dispatch AND j.status BETWEEN 2 AND 3
       AND CASE WHEN j.cancel_requested_at IS NULL THEN true ELSE false END AND EXISTS (SELECT FROM term)
    RETURNING j.id, u.dispatch, u.attempt, u.outcome, j.worker_id, ($3::text[])[u.worker] AS bucket_id,
              j.started_at, u.finished_at, u.error, u.retry_in_s
), ended AS (
    INSERT INTO jobmaster.attempt (job_id, attempt, dispatch, outcome, worker_id, bucket_id, started_at, finished_at,
                                   error, retry_in_s)
    SELECT id, attempt, dispatch, outcome, worker_id, bucket_id, started_at, coalesce(to_timestamp(finished_at), now()),
           error, retry_in_s
      FROM upd WHERE outcome <> ''
    ON CONFLICT DO NOTHING
)
SELECT (SELECT count(*) FROM term) AS terms, n AS updated,
       CASE WHEN n < cardinality($4) THEN (SELECT coalesce(array_agg(id::text), '{}') FROM upd) END AS ids
  FROM (SELECT count(*) AS n FROM upd) AS done;

-- name: record_started
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), upd AS (
    UPDATE jobmaster.job AS j
       SET status = 3, attempt = greatest(j.attempt, u.attempt), started_at = to_timestamp(u.started_at),
           worker_id = ($2::text[])[u.worker], progress = NULL, progress_note = NULL
      FROM unnest($3::uuid[], $4::int[], $5::int[], $6::float8[], $7::int[]) AS u(id, dispatch, attempt, started_at, worker)
     WHERE j.id = u.id AND j.dispatch = u.dispatch AND j.status BETWEEN 2 AND 3 AND EXISTS (SELECT FROM term)
    RETURNING 1
)
SELECT (SELECT count(*) FROM term) AS terms, (SELECT count(*) FROM upd) AS updated;

-- name: record_progress
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), upd AS (
    UPDATE jobmaster.job AS j SET progress = u.fraction, progress_note = nullif(u.note, '')
      FROM unnest($2::uuid[], $3::int[], $4::real[], $5::text[]) AS u(id, dispatch, fraction, note)
     WHERE j.id = u.id AND j.dispatch = u.dispatch AND j.status BETWEEN 2 AND 3 AND EXISTS (SELECT FROM term)
    RETURNING 1
)
SELECT (SELECT count(*) FROM term) AS terms, (SELECT count(*) FROM upd) AS updated;

-- name: reject_events
INSERT INTO jobmaster.rejected (source, raw, raw_bytes, reason)
SELECT r.source, r.raw, r.raw_bytes, r.reason
  FROM unnest($1::text[], $2::bytea[], $3::int[], $4::text[]) AS r(source, raw, raw_bytes, reason)
ON CONFLICT DO NOTHING;

-- name: load_held
-- Rows of a dead worker's jobs, with what decides about them.
SELECT j.id::text, j.handler, j.dispatch, j.attempt, j.max_attempts + j.excused AS max_attempts, j.losses,
       extract(epoch FROM j.started_at)::float8 AS started_at, j.status
  FROM unnest($1::uuid[], $2::int[]) AS u(id, dispatch)
  JOIN jobmaster.job AS j ON j.id = u.id AND j.dispatch = u.dispatch AND j.status BETWEEN 2 AND 3;
