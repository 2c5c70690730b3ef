-- name: cancel_jobs
-- The row decides, in one statement: what waits or lies in a bucket is cancelled, and from then on the fence refuses what
-- a worker makes of it; of what is processing the cancel is asked for, or with $5 (force) done. What has ended stays.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), picked AS MATERIALIZED (
    SELECT id, handler, status, bucket_id, dispatch, worker_id, attempt, run_at, started_at, cancel_requested_at
      FROM jobmaster.job WHERE id = ANY($2::uuid[]) AND EXISTS (SELECT FROM term) ORDER BY id FOR UPDATE
), upd AS (
    UPDATE jobmaster.job AS j
       SET status = CASE WHEN p.status = 3 AND NOT $5 THEN 3 ELSE 6 END,
           finished_at = CASE WHEN p.status = 3 AND NOT $5 THEN j.finished_at ELSE now() END,
           error = CASE WHEN p.status = 3 AND NOT $5 THEN j.error ELSE $6 END,
           cancel_requested_at = coalesce(j.cancel_requested_at, now()),
           cancelled_by = coalesce(j.cancelled_by, $3), cancel_reason = coalesce(j.cancel_reason, $4)
      FROM picked AS p
     WHERE j.id = p.id AND p.status < 4 AND (p.cancel_requested_at IS NULL OR $5)
    RETURNING j.id, j.status
), ended AS (
    INSERT INTO jobmaster.attempt (job_id, attempt, dispatch, outcome, worker_id, bucket_id, started_at, finished_at,
                                   error)
    SELECT p.id, p.attempt, p.dispatch, 'cancelled', p.worker_id, p.bucket_id, p.started_at, now(), $6
      FROM picked AS p JOIN upd ON upd.id = p.id WHERE p.status = 3 AND upd.status = 6
    ON CONFLICT DO NOTHING
), orders AS (
    INSERT INTO jobmaster.cancel_order (job_id, dispatch, bucket_id, why)
    SELECT p.id, p.dispatch, p.bucket_id, $6
      FROM picked AS p JOIN upd ON upd.id = p.id WHERE p.status IN (2, 3) AND p.bucket_id IS NOT NULL
    ON CONFLICT (job_id, dispatch) DO UPDATE SET told = 0, told_at = NULL  -- asked for before, and now done by force
)
SELECT (SELECT count(*) FROM term) AS terms, p.id::text, p.handler, p.status AS was, p.bucket_id, p.worker_id, p.dispatch,
       extract(epoch FROM p.run_at)::float8 AS run_at, upd.status AS became,
       p.cancel_requested_at IS NOT NULL AS asked_before
  FROM (SELECT) AS one LEFT JOIN picked AS p ON true LEFT JOIN upd ON upd.id = p.id;

-- name: load_orders
-- Orders to send of agent $2 (its prefix): new ones at once, those of jobs that still run again after 2, 4, 8 … 60 s.
SELECT o.job_id::text, o.dispatch, o.bucket_id, o.why, o.told, extract(epoch FROM j.run_at)::float8 AS cancelled_run_at
  FROM jobmaster.cancel_order AS o
  LEFT JOIN jobmaster.job AS j ON j.id = o.job_id AND j.dispatch = o.dispatch AND j.status = 6
 WHERE (o.told_at IS NULL OR o.told_at < now() - least(60, 2 ^ least(o.told, 6)) * interval '1 second')
   AND left(o.bucket_id, strpos(o.bucket_id, '/')) = $2
 ORDER BY o.told_at NULLS FIRST LIMIT $1;

-- name: mark_told
UPDATE jobmaster.cancel_order AS o SET told = o.told + 1, told_at = now()
  FROM unnest($1::uuid[], $2::int[]) AS u(id, dispatch) WHERE o.job_id = u.id AND o.dispatch = u.dispatch;

-- name: forget_orders
-- Of those that were told, what has ended needs no order any more. Returns how many are left of agent $1 (its prefix).
WITH gone AS (
    DELETE FROM jobmaster.cancel_order AS o
     WHERE o.told_at IS NOT NULL AND left(o.bucket_id, strpos(o.bucket_id, '/')) = $1
       AND NOT EXISTS (SELECT FROM jobmaster.job AS j
                        WHERE j.id = o.job_id AND j.dispatch = o.dispatch AND j.status = 3
                          AND j.cancel_requested_at IS NOT NULL)
    RETURNING 1
)
SELECT (SELECT count(*) FROM jobmaster.cancel_order WHERE left(bucket_id, strpos(bucket_id, '/')) = $1)
     - (SELECT count(*) FROM gone);

-- name: end_cancelled
-- Ends that the fence refused, of jobs whose cancel was asked for: the cancel wins, whatever is reported. Of a job that
-- had been cancelled in its bucket and was just being started, it is noted what its worker made of it.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), picked AS MATERIALIZED (
    SELECT j.id, j.status, u.dispatch, u.attempt, u.outcome, ($2::text[])[u.worker] AS worker_id,
           ($3::text[])[u.worker] AS bucket_id, u.started_at, u.finished_at, u.error
      FROM unnest($4::uuid[], $5::int[], $6::int[], $7::text[], $8::int[], $9::float8[], $10::float8[], $11::text[])
           AS u(id, dispatch, attempt, outcome, worker, started_at, finished_at, error)
      JOIN jobmaster.job AS j ON j.id = u.id AND j.dispatch = u.dispatch
     WHERE j.cancel_requested_at IS NOT NULL AND j.status IN (2, 3, 6) AND EXISTS (SELECT FROM term)
       FOR UPDATE OF j
), upd AS (
    UPDATE jobmaster.job AS j
       SET status = 6, attempt = greatest(j.attempt, p.attempt),
           worker_id = CASE WHEN p.outcome <> '' THEN p.worker_id ELSE j.worker_id END,
           started_at = coalesce(to_timestamp(p.started_at), j.started_at),
           finished_at = CASE WHEN p.status = 6 THEN j.finished_at ELSE coalesce(to_timestamp(p.finished_at), now()) END,
           error = CASE WHEN p.status = 6 THEN j.error
                        ELSE 'cancelled by ' || j.cancelled_by || coalesce(': ' || nullif(j.cancel_reason, ''), '') END
      FROM picked AS p WHERE j.id = p.id AND (p.status < 6 OR p.outcome <> '')
    RETURNING j.id, p.status AS was, j.started_at
), ended AS (
    INSERT INTO jobmaster.attempt (job_id, attempt, dispatch, outcome, worker_id, bucket_id, started_at, finished_at,
                                   error)
    SELECT p.id, p.attempt, p.dispatch, p.outcome, p.worker_id, p.bucket_id, upd.started_at,
           coalesce(to_timestamp(p.finished_at), now()), p.error
      FROM picked AS p JOIN upd ON upd.id = p.id WHERE p.outcome <> ''
    ON CONFLICT DO NOTHING
)
SELECT (SELECT count(*) FROM term) AS terms, coalesce(array_agg(id::text) FILTER (WHERE was < 6), '{}') AS ids FROM upd;
