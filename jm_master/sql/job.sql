-- name: get_job
SELECT id::text, handler, status, lane, priority, attempt, max_attempts, run_at, queued_at, recorded_at, started_at,
       finished_at, timeout_s::float8, bucket_id, worker_id, dispatch, losses, unique_key, unique_until, metadata::text, trace,
       progress::float8, progress_note, args::text, false AS args_cut, result::text, error,
       cancel_requested_at, cancelled_by, cancel_reason, schedule, occurrence
  FROM jobmaster.job WHERE id = $1;

-- name: list_jobs
-- Newest first by id (ids are time-ordered). A NULL filter lets everything pass. Long texts are cut to $7 characters:
-- a page of jobs has to fit one message.
SELECT id::text, handler, status, lane, priority, attempt, max_attempts, run_at, queued_at, recorded_at, started_at,
       finished_at, timeout_s::float8, bucket_id, worker_id, dispatch, losses, unique_key, unique_until, NULL AS metadata, trace,
       progress::float8, progress_note, left(args::text, $7) AS args, length(args::text) > $7 AS args_cut,
       CASE WHEN length(result::text) <= $7 THEN result::text END AS result, left(error, $7) AS error,
       cancel_requested_at, cancelled_by, cancel_reason, schedule, occurrence
  FROM jobmaster.job
 WHERE ($1::smallint[] IS NULL OR status = ANY($1)) AND ($2::text IS NULL OR handler = $2)
   AND ($3::text IS NULL OR lane = $3) AND ($4::smallint IS NULL OR priority = $4)
   AND ($5::uuid IS NULL OR id < $5) AND ($8::text IS NULL OR schedule = $8)
 ORDER BY id DESC LIMIT $6;

-- name: list_attempts
SELECT attempt, outcome, dispatch, worker_id, bucket_id, started_at, finished_at, error, retry_in_s::float8
  FROM jobmaster.attempt WHERE job_id = $1 ORDER BY dispatch;

-- name: get_result
SELECT id::text, status, result::text, error FROM jobmaster.job WHERE id = $1;

-- name: get_ended
-- Of these jobs the ended ones, the first to end first, as long as results and errors take no more than $2 bytes; one
-- at least.
SELECT id::text, status, result, error
  FROM (SELECT j.id, j.status, j.result::text AS result, j.error, j.finished_at,
               sum(200 + coalesce(octet_length(j.result::text), 0) + coalesce(octet_length(j.error), 0))
                   OVER (ORDER BY j.finished_at, j.id) AS bytes,
               row_number() OVER (ORDER BY j.finished_at, j.id) AS place
          FROM unnest($1::uuid[]) AS u(id) JOIN jobmaster.job AS j ON j.id = u.id
         WHERE j.status > 3) AS ended
 WHERE bytes <= $2 OR place = 1
 ORDER BY finished_at, id;

-- name: which_ended
SELECT id::text FROM jobmaster.job WHERE id = ANY($1::uuid[]) AND status > 3;

-- name: get_progress
SELECT id::text, status, attempt, progress::float8 AS fraction, progress_note AS note, error
  FROM jobmaster.job WHERE id = $1;

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
