-- name: load_out
-- What a bucket holds by the record, due for $2 seconds at least, the longest due first. One range of job_in_bucket: at
-- most what a worker's credit allows, so that it is read and sorted in a few milliseconds.
SELECT j.id::text, j.handler, j.dispatch, j.attempt, j.max_attempts + j.excused AS max_attempts, j.losses,
       extract(epoch FROM j.started_at)::float8 AS started_at, j.status,
       extract(epoch FROM now() - j.run_at)::float8 AS due_for_s
  FROM jobmaster.job AS j
 WHERE j.bucket_id = $1 AND j.status IN (2, 3) AND j.run_at <= now() - $2::float8 * interval '1 second'
 ORDER BY j.run_at LIMIT $3;

-- name: load_unsent
-- Which of these jobs are in a message that NATS may not have yet.
SELECT DISTINCT u.id::text
  FROM jobmaster.outbox AS o CROSS JOIN LATERAL unnest(o.job_ids) AS u(id)
 WHERE o.bucket_id = $1 AND u.id = ANY($2::uuid[]);
