-- name: load_bucket
-- What a bucket still holds by the record, with what decides about it.
SELECT j.id::text, j.handler, j.dispatch, j.attempt, j.max_attempts + j.excused AS max_attempts, j.losses,
       extract(epoch FROM j.started_at)::float8 AS started_at, j.status
  FROM jobmaster.job AS j
 WHERE j.bucket_id = $1 AND j.status IN (2, 3)
 ORDER BY j.id LIMIT $2;

-- name: bury_bucket
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), tombstone AS (
    INSERT INTO jobmaster.bucket (bucket_id, worker_id, lane, priority, epoch, reason, jobs_returned, opened_at)
    SELECT $2, $3, $4, $5, $6, $7, $8, to_timestamp($9::float8) WHERE EXISTS (SELECT FROM term)
    ON CONFLICT (bucket_id) DO UPDATE SET jobs_returned = greatest(bucket.jobs_returned, excluded.jobs_returned)
)
SELECT count(*) AS terms FROM term;

-- name: buckets_with_jobs
-- Every bucket that a row still points at. One step in the index per bucket.
WITH RECURSIVE named AS (
    (SELECT bucket_id FROM jobmaster.job WHERE status IN (2, 3) ORDER BY bucket_id LIMIT 1)
    UNION ALL
    SELECT next.bucket_id FROM named CROSS JOIN LATERAL (
        SELECT j.bucket_id FROM jobmaster.job AS j
         WHERE j.status IN (2, 3) AND j.bucket_id > named.bucket_id ORDER BY j.bucket_id LIMIT 1) AS next
)
SELECT bucket_id FROM named WHERE bucket_id IS NOT NULL;
