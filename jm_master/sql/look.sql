-- name: queue_due
-- What is due and lies on the master, by (lane, priority, handler): for how long one of each kind has waited (of the first 100; since
-- it is due, or where it has run since and was interrupted or lost, since then), and how many there are, counted up to $1, and all kinds together up to $2, each its share. Steps from kind to kind in the
-- index (as `waiting` of dispatch.sql) and never reads what is not due yet, however much that is.
WITH RECURSIVE head AS (
    (SELECT lane, priority, handler, run_at FROM jobmaster.job WHERE status = 1
      ORDER BY lane, priority, handler, run_at LIMIT 1)
    UNION ALL
    SELECT next.* FROM head CROSS JOIN LATERAL (
        SELECT j.lane, j.priority, j.handler, j.run_at FROM jobmaster.job AS j
         WHERE j.status = 1 AND (j.lane, j.priority, j.handler) > (head.lane, head.priority, head.handler)
         ORDER BY j.lane, j.priority, j.handler, j.run_at LIMIT 1) AS next
), due AS MATERIALIZED (
    SELECT *, least($1::bigint, $2::bigint / count(*) OVER ()) AS count_max FROM head WHERE run_at <= now()
)
SELECT due.lane, due.priority, oldest.age_s, counted.jobs
  FROM due CROSS JOIN LATERAL (
    SELECT extract(epoch FROM now() - min(CASE WHEN first.started_at >= first.run_at THEN coalesce(
               (SELECT max(finished_at) FROM jobmaster.attempt WHERE job_id = first.id), first.started_at)
           ELSE first.run_at END))::float8 AS age_s
      FROM (SELECT j.id, j.run_at, j.started_at FROM jobmaster.job AS j
             WHERE j.status = 1 AND j.lane = due.lane AND j.priority = due.priority AND j.handler = due.handler
               AND j.run_at <= now()
             ORDER BY j.run_at LIMIT 100) AS first) AS oldest
 CROSS JOIN LATERAL (
    SELECT count(*) AS jobs FROM (
        SELECT FROM jobmaster.job AS j
         WHERE j.status = 1 AND j.lane = due.lane AND j.priority = due.priority AND j.handler = due.handler
           AND j.run_at <= now()
         LIMIT due.count_max) AS one) AS counted;

-- name: queue_out
-- What lies in our agent's buckets: counted up to $1 rows and no further. age_s: of the one that
-- has waited longest for a start, as above.
SELECT lane, priority, status, count(*) AS jobs,
       extract(epoch FROM now() - min(CASE WHEN started_at >= run_at THEN coalesce(
           (SELECT max(finished_at) FROM jobmaster.attempt WHERE job_id = out.id), started_at)
       ELSE run_at END) FILTER (WHERE status = 2 AND run_at <= now()))::float8 AS age_s
  FROM (SELECT id, lane, priority, status, run_at, started_at FROM jobmaster.job
         WHERE status IN (2, 3) AND left(bucket_id, strpos(bucket_id, '/')) = $2 LIMIT $1) AS out
 GROUP BY lane, priority, status;

-- name: outbox_size
-- Of our agent, counted up to $1.
SELECT count(*) FROM (
    SELECT FROM jobmaster.outbox WHERE left(bucket_id, strpos(bucket_id, '/')) = $2 LIMIT $1) AS waiting;
