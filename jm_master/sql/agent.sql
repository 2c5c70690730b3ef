-- name: get_setting
SELECT value FROM jobmaster.setting WHERE key = $1;

-- name: make_setting
-- Only where there is none: what is there, then or now, is what counts.
INSERT INTO jobmaster.setting (key, value) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING;

-- name: count_unfinished
-- Of recorded jobs: those that lie in a bucket, and all that have not ended.
SELECT count(*) FILTER (WHERE status > 1) AS in_buckets, count(*) AS unfinished FROM jobmaster.job WHERE status < 4;

-- name: put_back
-- Up to $2 jobs that lie in a bucket, back to the master at no cost of an attempt; what was asked to be cancelled is
-- cancelled. What had started gets its row in `attempt`; should its worker still be at it, the dispatch fence refuses its
-- outcome.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), picked AS MATERIALIZED (
    SELECT id, status, bucket_id FROM jobmaster.job
     WHERE status IN (2, 3) AND EXISTS (SELECT FROM term) LIMIT $2 FOR UPDATE
), back AS (
    UPDATE jobmaster.job AS j
       SET status = CASE WHEN j.cancel_requested_at IS NULL THEN 1 ELSE 6 END, bucket_id = NULL,
           finished_at = CASE WHEN j.cancel_requested_at IS NULL THEN j.finished_at ELSE now() END,
           excused = j.excused + CASE WHEN p.status = 3 THEN 1 ELSE 0 END
      FROM picked AS p WHERE j.id = p.id
    RETURNING j.id, j.attempt, j.dispatch, p.status AS was, p.bucket_id, j.worker_id, j.started_at
), ended AS (
    INSERT INTO jobmaster.attempt (job_id, attempt, dispatch, outcome, worker_id, bucket_id, started_at, finished_at,
                                   error)
    SELECT id, attempt, dispatch, 'interrupted', worker_id, bucket_id, started_at, now(), $3 FROM back WHERE was = 3
    ON CONFLICT DO NOTHING
)
SELECT (SELECT count(*) FROM term) AS terms, (SELECT count(*) FROM back) AS jobs;

-- name: take_over_setting
-- The last step: from here on this NATS store is the right one, and nothing is on the way to another.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), out AS (
    DELETE FROM jobmaster.outbox WHERE EXISTS (SELECT FROM term)
), kept AS (
    INSERT INTO jobmaster.setting (key, value) SELECT $2, $3 WHERE EXISTS (SELECT FROM term)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, updated_at = now()
)
SELECT count(*) AS terms FROM term;
