-- name: save_jobs
-- One batch of submissions: rows, outgoing messages, refusals, and the clean-up of messages sent before. One statement
-- is one round trip and one transaction; without the term nothing of it happens.
--
-- A job's columns come as arrays; what a run of neighbours has in common comes once, as a *part* (lo to hi). Optional
-- columns are empty arrays when no job of the batch has them: unnest fills up with NULL. Ids and numbers come as the
-- text of an array (jm_master/literals.py). Ids are gathered only when somebody asks for them, in the last lines.
--
-- save_new_jobs is this without the first ON CONFLICT: jm_master/save_store.py takes that out, and says why.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), input AS MATERIALIZED (  -- read once, not once a part
    SELECT $11::text::uuid[] AS ids, $13::text::int[] AS messages, $14::text::float8[] AS run_ats
), ins AS (
    INSERT INTO jobmaster.job (id, handler, args, status, priority, lane, bucket_id, dispatch, run_at,
                               max_attempts, timeout_s, queued_at, unique_key, metadata, trace, unique_until)
    SELECT u.id, p.handler, u.args::jsonb, CASE WHEN p.bucket_id IS NULL THEN 1 ELSE 2 END, p.priority, p.lane,
           p.bucket_id, CASE WHEN p.bucket_id IS NULL THEN 0 ELSE 1 END,
           coalesce(to_timestamp(u.run_at), to_timestamp(($2::float8[])[u.message])),
           p.max_attempts, p.timeout_s, to_timestamp(($2::float8[])[u.message]),
           u.unique_key, u.metadata::jsonb, u.trace,
           to_timestamp(($2::float8[])[u.message] + u.unique_for_s)
      FROM input
     CROSS JOIN unnest($3::int[], $4::int[], $5::text[], $6::text[], $7::smallint[], $8::int[], $9::real[], $10::text[])
           AS p(lo, hi, handler, lane, priority, max_attempts, timeout_s, bucket_id)
     CROSS JOIN LATERAL unnest(
               input.ids[p.lo:p.hi], ($12::text[])[p.lo:p.hi], input.messages[p.lo:p.hi], input.run_ats[p.lo:p.hi],
               ($15::text[])[p.lo:p.hi], ($16::text[])[p.lo:p.hi], ($17::text[])[p.lo:p.hi],
               ($32::float8[])[p.lo:p.hi])
           AS u(id, args, message, run_at, unique_key, metadata, trace, unique_for_s)
     WHERE EXISTS (SELECT FROM term)
    ON CONFLICT DO NOTHING
    RETURNING id
), out AS (
    INSERT INTO jobmaster.outbox (outbox_id, bucket_id, deliver_at, job_ids)
    SELECT o.outbox_id, o.bucket_id, to_timestamp(o.deliver_at), input.ids[o.lo:o.hi]
      FROM input CROSS JOIN unnest($18::uuid[], $19::text[], $20::float8[], $21::int[], $22::int[])
           AS o(outbox_id, bucket_id, deliver_at, lo, hi)
     WHERE EXISTS (SELECT FROM term)
    ON CONFLICT DO NOTHING
), sent AS (
    DELETE FROM jobmaster.outbox WHERE outbox_id = ANY($23::uuid[]) AND EXISTS (SELECT FROM term)
), refused AS (
    INSERT INTO jobmaster.rejected (source, raw, raw_bytes, reason, job_id, handler, field)
    SELECT r.source, r.raw, r.raw_bytes, r.reason, nullif(r.job_id, ''), nullif(r.handler, ''), nullif(r.field, '')
      FROM unnest($24::text[], $25::bytea[], $26::int[], $27::text[], $28::text[], $29::text[], $30::text[])
           AS r(source, raw, raw_bytes, reason, job_id, handler, field)
     WHERE EXISTS (SELECT FROM term)
    ON CONFLICT DO NOTHING
)
SELECT (SELECT count(*) FROM term) AS terms, n AS inserted,
       CASE WHEN n < $31 THEN (SELECT coalesce(array_agg(id::text), '{}') FROM ins) END AS ids
  FROM (SELECT count(*) AS n FROM ins) AS done;

-- name: save_lone_job
-- The same for a batch that is one new job without a unique key: a third less time in Postgres, which is what the job of
-- somebody who waits for it is about. $5 is its bucket, $14 its message; neither when it stays on the master.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), ins AS (
    INSERT INTO jobmaster.job (id, handler, args, status, priority, lane, bucket_id, dispatch, run_at,
                               max_attempts, timeout_s, queued_at, metadata, trace)
    SELECT $2::uuid, $3::text, $4::text::jsonb, CASE WHEN $5::text IS NULL THEN 1 ELSE 2 END, $6::smallint, $7::text,
           $5::text, CASE WHEN $5::text IS NULL THEN 0 ELSE 1 END, to_timestamp(coalesce($8::float8, $11::float8)),
           $9::int, $10::real, to_timestamp($11::float8), $12::text::jsonb, $13::text
     WHERE EXISTS (SELECT FROM term)
), out AS (
    INSERT INTO jobmaster.outbox (outbox_id, bucket_id, deliver_at, job_ids)
    SELECT $14::uuid, $5::text, to_timestamp($15::float8), ARRAY[$2::uuid]
     WHERE $5::text IS NOT NULL AND EXISTS (SELECT FROM term)
), sent AS (
    DELETE FROM jobmaster.outbox WHERE outbox_id = ANY($16::uuid[]) AND EXISTS (SELECT FROM term)
)
SELECT count(*) AS terms, NULL::text[] AS ids FROM term;

-- name: find_clashes
-- Why rows were not inserted: the row that is there under the same id, or the one that holds the key.
SELECT u.id::text, coalesce(same.id, other.id)::text AS existing_id,
       extract(epoch FROM same.queued_at)::float8 AS same_queued_at, other.status,
       extract(epoch FROM other.queued_at)::float8 AS queued_at, extract(epoch FROM other.unique_until)::float8 AS held_until,
       extract(epoch FROM other.run_at - now())::float8 AS due_in_s
  FROM unnest($1::uuid[], $2::text[]) AS u(id, unique_key)
  LEFT JOIN jobmaster.job AS same ON same.id = u.id
  LEFT JOIN jobmaster.job AS other ON other.unique_key = u.unique_key
                                  AND (other.status < 4 OR other.unique_until IS NOT NULL);

-- name: release_keys
-- Jobs that have ended and whose window had passed when the newcomer was queued.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), freed AS (
    UPDATE jobmaster.job AS j SET unique_until = NULL
      FROM unnest($2::uuid[], $3::float8[]) AS u(id, queued_at)
     WHERE j.id = u.id AND j.status > 3 AND j.unique_until <= to_timestamp(u.queued_at) AND EXISTS (SELECT FROM term)
)
SELECT count(*) AS terms FROM term;

-- name: give_way
-- A job that still waits lets go of its key, and stays locked for the cancel that follows. One that lies in a bucket waits
-- as long as it is not due for $2 seconds: its worker may be about to start it otherwise.
UPDATE jobmaster.job SET unique_until = NULL
 WHERE id = $1 AND (status = 1 OR status = 2 AND run_at > now() + $2::float8 * interval '1 second')
RETURNING id;
