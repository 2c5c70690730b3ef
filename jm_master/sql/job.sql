-- name: get_job
SELECT id::text, handler, status, lane, priority, attempt, max_attempts, run_at, queued_at, recorded_at, started_at,
       finished_at, timeout_s::float8, bucket_id, worker_id, dispatch, losses, unique_key, metadata::text, trace,
       progress::float8, progress_note, args::text, false AS args_cut, result::text, error, schedule, occurrence
  FROM jobmaster.job WHERE id = $1;

-- name: list_jobs
-- Newest first by id (ids are time-ordered). A NULL filter lets everything pass. Long texts are cut to $7 characters:
-- a page of jobs has to fit one message.
SELECT id::text, handler, status, lane, priority, attempt, max_attempts, run_at, queued_at, recorded_at, started_at,
       finished_at, timeout_s::float8, bucket_id, worker_id, dispatch, losses, unique_key, NULL AS metadata, trace,
       progress::float8, progress_note, left(args::text, $7) AS args, length(args::text) > $7 AS args_cut,
       CASE WHEN length(result::text) <= $7 THEN result::text END AS result, left(error, $7) AS error,
       schedule, occurrence
  FROM jobmaster.job
 WHERE ($1::smallint[] IS NULL OR status = ANY($1)) AND ($2::text IS NULL OR handler = $2)
   AND ($3::text IS NULL OR lane = $3) AND ($4::smallint IS NULL OR priority = $4)
   AND ($5::uuid IS NULL OR id < $5) AND ($8::text IS NULL OR schedule = $8)
 ORDER BY id DESC LIMIT $6;

-- name: list_attempts
SELECT attempt, outcome, dispatch, worker_id, bucket_id, started_at, finished_at, error, retry_in_s::float8
  FROM jobmaster.attempt WHERE job_id = $1 ORDER BY dispatch;

-- name: get_result
SELECT status, result::text, error FROM jobmaster.job WHERE id = $1;

-- name: count_jobs
SELECT status, count(*) AS jobs FROM jobmaster.job GROUP BY status;

-- name: count_rejected
SELECT count(*) FROM jobmaster.rejected;

-- name: list_rejected
SELECT rejected_id, rejected_at, reason, job_id, handler, field, raw_bytes, NULL::bytea AS raw
  FROM jobmaster.rejected WHERE $1::bigint IS NULL OR rejected_id < $1 ORDER BY rejected_id DESC LIMIT $2;

-- name: get_rejected
SELECT rejected_id, rejected_at, reason, job_id, handler, field, raw_bytes, raw
  FROM jobmaster.rejected WHERE rejected_id = $1;
