-- name: waiting
-- Which (lane, priority, handler) have jobs waiting, and when the first of each is due. Steps from group to group in the
-- index instead of reading the rows of any.
WITH RECURSIVE head AS (
    (SELECT lane, priority, handler, run_at FROM jobmaster.job WHERE status = 1
      ORDER BY lane, priority, handler, run_at LIMIT 1)
    UNION ALL
    SELECT next.* FROM head CROSS JOIN LATERAL (
        SELECT j.lane, j.priority, j.handler, j.run_at FROM jobmaster.job AS j
         WHERE j.status = 1 AND (j.lane, j.priority, j.handler) > (head.lane, head.priority, head.handler)
         ORDER BY j.lane, j.priority, j.handler, j.run_at LIMIT 1) AS next
)
SELECT lane, priority, handler, extract(epoch FROM run_at - now())::float8 AS due_in_s FROM head;

-- name: count_due
-- How many jobs of these handlers are due between $5 and $6 seconds from now; counts to $4 and no further.
SELECT count(*) FROM (
    SELECT FROM unnest($3::text[]) AS h(handler)
     CROSS JOIN LATERAL (
        SELECT FROM jobmaster.job AS j
         WHERE j.status = 1 AND j.lane = $1 AND j.priority = $2 AND j.handler = h.handler
           AND j.run_at > now() + $5::float8 * interval '1 second' AND j.run_at <= now() + $6::float8 * interval '1 second'
         LIMIT $4) AS due
     LIMIT $4) AS due;

-- name: assign
-- Move the $6 oldest of these handlers' jobs, due between $7 and $8 seconds from now, into bucket $5: new dispatch
-- number, outbox rows and the run messages themselves, as text. One message per 200 jobs, per 256 KiB, and per due
-- second for what is due later than $9 seconds from now. What is picked is locked and waits: asking for status = 1 again
-- would let the planner, when it believes that hardly anything waits, read the whole backlog for every job moved.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), picked AS MATERIALIZED (
    SELECT due.id
      FROM unnest($4::text[]) AS h(handler)
     CROSS JOIN LATERAL (
        SELECT j.id, j.run_at FROM jobmaster.job AS j
         WHERE j.status = 1 AND j.lane = $2 AND j.priority = $3 AND j.handler = h.handler
           AND j.run_at > now() + $7::float8 * interval '1 second' AND j.run_at <= now() + $8::float8 * interval '1 second'
         ORDER BY j.run_at LIMIT $6 FOR UPDATE SKIP LOCKED) AS due
     WHERE EXISTS (SELECT FROM term)
     ORDER BY due.run_at LIMIT $6
), moved AS (
    UPDATE jobmaster.job AS j SET status = 2, bucket_id = $5, dispatch = j.dispatch + 1
      FROM picked WHERE j.id = picked.id
    RETURNING j.id, j.dispatch, j.run_at,
              json_build_array(j.id, j.handler, j.args, j.dispatch, j.attempt + 1, j.max_attempts + j.excused,
                               extract(epoch FROM j.run_at), j.timeout_s, j.metadata, j.trace, j.losses,
                               j.run_at = j.queued_at, coalesce(j.started_at >= j.run_at, false))::text AS run
), timed AS (
    SELECT *, CASE WHEN run_at > now() + $9::float8 * interval '1 second'
                   THEN floor(extract(epoch FROM run_at))::bigint ELSE 0 END AS second
      FROM moved
), numbered AS (
    SELECT *, row_number() OVER oldest AS place, sum(octet_length(run) + 1) OVER oldest - octet_length(run) AS before
      FROM timed WINDOW oldest AS (PARTITION BY second ORDER BY run_at, id)
), message AS MATERIALIZED (
    SELECT gen_random_uuid() AS outbox_id, second, count(*) AS jobs, '[' || string_agg(run, ',' ORDER BY place) || ']' AS body,
           array_agg(id ORDER BY place) AS ids, array_agg(dispatch ORDER BY place) AS dispatches
      FROM numbered GROUP BY second, (place - 1) / 200, div(before, 262144)
), out AS (
    INSERT INTO jobmaster.outbox (outbox_id, bucket_id, deliver_at, job_ids, dispatches)
    SELECT outbox_id, $5, CASE WHEN second > 0 THEN to_timestamp(second - $9) END, ids, dispatches FROM message
)
SELECT (SELECT count(*) FROM term) AS terms, m.outbox_id::text, m.second, m.jobs, m.body
  FROM (SELECT) AS one LEFT JOIN message AS m ON true;

-- name: load_outbox
-- Messages that may never have reached NATS, built again from the rows that are still out under their dispatch number.
-- body NULL: all of them have moved on. $2 NULL: all that are older than $1 seconds; else these. $3: but not these. $4: of
-- our agent only (jm_core/agent_names.py).
SELECT o.outbox_id::text, o.bucket_id, extract(epoch FROM o.deliver_at)::float8 AS deliver_at, m.body
  FROM jobmaster.outbox AS o
 CROSS JOIN LATERAL (
    SELECT '[' || string_agg(
               json_build_array(j.id, j.handler, j.args, j.dispatch, j.attempt + 1, j.max_attempts + j.excused,
                                extract(epoch FROM j.run_at), j.timeout_s, j.metadata, j.trace, j.losses,
                                j.run_at = j.queued_at, coalesce(j.started_at >= j.run_at, false))::text,
               ',' ORDER BY u.place) || ']' AS body
      FROM unnest(o.job_ids, o.dispatches) WITH ORDINALITY AS u(id, dispatch, place)
      JOIN jobmaster.job AS j ON j.id = u.id AND j.dispatch = coalesce(u.dispatch, 1) AND j.status = 2
                             AND j.bucket_id = o.bucket_id) AS m
 WHERE CASE WHEN $2::uuid[] IS NULL THEN o.created_at <= now() - $1::float8 * interval '1 second'
            ELSE o.outbox_id = ANY($2) END
   AND o.outbox_id <> ALL($3::uuid[]) AND left(o.bucket_id, strpos(o.bucket_id, '/')) = $4
 ORDER BY o.created_at
 LIMIT 50;

-- name: delete_outbox
DELETE FROM jobmaster.outbox WHERE outbox_id = ANY($1::uuid[]);

-- name: count_in_buckets
-- What lies where at our agent, for the ledger: jobs that are due by second 0, later ones by the second in which they are due.
SELECT bucket_id, CASE WHEN run_at > now() + $1::float8 * interval '1 second'
                       THEN floor(extract(epoch FROM run_at))::bigint ELSE 0 END AS second, count(*) AS jobs
  FROM jobmaster.job WHERE status IN (2, 3) AND left(bucket_id, strpos(bucket_id, '/')) = $2 GROUP BY 1, 2;
