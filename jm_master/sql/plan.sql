-- name: load_due
-- Up to $1 schedules that are to be looked at now, the longest due first, and those of which a queued instant can become
-- a job because its predecessor has ended. blocker: an unfinished job, where the overlap policy asks for one.
WITH picked AS MATERIALIZED (
    (SELECT name FROM jobmaster.schedule
      WHERE state IN ('active', 'idle') AND coalesce(plan_at, '-infinity') <= now()
      ORDER BY coalesce(plan_at, '-infinity') LIMIT $1)
    UNION
    (SELECT s.name FROM jobmaster.schedule AS s
      WHERE s.queued_at IS NOT NULL AND s.state IN ('active', 'idle', 'done')
        AND NOT EXISTS (SELECT FROM jobmaster.job AS j WHERE j.schedule = s.name AND j.status < 4)
      LIMIT $1)
)
SELECT s.name, s.schedule_id::text, s.kind, s.expr, s.zone, s.handler, s.args::text, s.lane, s.priority, s.max_attempts,
       s.timeout_s, s.metadata::text, s.unique_key, s.misfire, s.misfire_limit, s.misfire_window_s, s.overlap, s.jitter_s,
       s.starts_at, s.ends_at, s.max_runs, s.state, s.created_at, s.since_at, s.next_at, s.floor_at, s.floor_reason, s.queued_at,
       s.left_out, s.runs, s.plan_no, s.generation, now() AS now,
       CASE WHEN isfinite(s.plan_at) THEN extract(epoch FROM now() - s.plan_at)::float8 END AS late_s,
       CASE WHEN s.overlap <> 'allow' THEN (
           SELECT j.id::text FROM jobmaster.job AS j WHERE j.schedule = s.name AND j.status < 4 LIMIT 1) END AS blocker
  FROM picked JOIN jobmaster.schedule AS s USING (name);

-- name: next_look
-- Seconds until the next schedule is to be looked at (NULL: there is none), and whether an instant is queued.
SELECT (SELECT CASE WHEN first.at = '-infinity' THEN 0 WHEN first.at < 'infinity'
                    THEN extract(epoch FROM first.at - now())::float8 END
          FROM (SELECT coalesce(plan_at, '-infinity') AS at FROM jobmaster.schedule WHERE state IN ('active', 'idle')
                 ORDER BY coalesce(plan_at, '-infinity') LIMIT 1) AS first) AS in_s,
       EXISTS (SELECT FROM jobmaster.schedule WHERE queued_at IS NOT NULL AND state IN ('active', 'idle', 'done')) AS queued;

-- name: commit_plans
-- What was decided for a batch of schedules: how far they are planned, and the jobs and skips of it. A plan counts only
-- if the schedule is as it was when it was made (plan_no, generation), so that a repeated or late one does nothing. Jobs
-- and skips of all plans come in one array each, of which every plan has a slice.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), plan AS MATERIALIZED (
    SELECT * FROM unnest($2::text[], $3::bigint[], $4::int[], $5::timestamptz[], $6::timestamptz[], $7::timestamptz[],
                         $8::timestamptz[], $9::bool[], $10::int[], $11::bigint[], $12::bool[], $13::text[], $14::smallint[],
                         $15::int[], $16::float8[], $17::int[], $18::int[], $19::int[], $20::int[])
           WITH ORDINALITY AS u(name, plan_no, generation, next_at, plan_at, last_at, queued_at, is_done, runs, skipped, more,
                                lane, priority, max_attempts, timeout_s, jobs_lo, jobs_hi, skips_lo, skips_hi, place)
), upd AS (
    UPDATE jobmaster.schedule AS s
       SET next_at = u.next_at, plan_at = u.plan_at, last_at = greatest(u.last_at, s.last_at), queued_at = u.queued_at,
           runs = s.runs + u.runs, skipped = s.skipped + u.skipped, skipped_more = s.skipped_more OR u.more,
           state = CASE WHEN u.is_done THEN 'done' ELSE s.state END, floor_at = NULL, floor_reason = NULL,
           plan_no = s.plan_no + 1
      FROM plan AS u
     WHERE s.name = u.name AND s.plan_no = u.plan_no AND s.generation = u.generation
       AND s.state IN ('active', 'idle', 'done') AND EXISTS (SELECT FROM term)
    RETURNING u.place, s.name, s.schedule_id, s.handler, s.args, s.metadata, s.unique_key, u.lane, u.priority,
              u.max_attempts, u.timeout_s, u.jobs_lo, u.jobs_hi, u.skips_lo, u.skips_hi
), ins AS (
    INSERT INTO jobmaster.job (id, handler, args, status, priority, lane, run_at, max_attempts, timeout_s, queued_at,
                               unique_key, metadata, schedule, occurrence)
    SELECT j.id, upd.handler, upd.args, 1, upd.priority, upd.lane, j.run_at, upd.max_attempts, upd.timeout_s, now(),
           upd.unique_key, upd.metadata, upd.name, j.occurrence
      FROM upd CROSS JOIN LATERAL unnest(
               ($21::uuid[])[upd.jobs_lo:upd.jobs_hi], ($22::timestamptz[])[upd.jobs_lo:upd.jobs_hi],
               ($23::timestamptz[])[upd.jobs_lo:upd.jobs_hi]) AS j(id, occurrence, run_at)
    ON CONFLICT DO NOTHING
    RETURNING id
), skip AS (
    INSERT INTO jobmaster.schedule_skip AS k (schedule_id, schedule, reason, detail, first_at, last_at, count, more)
    SELECT upd.schedule_id, upd.name, x.reason, x.detail, x.first_at, x.last_at, x.count, x.more
      FROM upd CROSS JOIN LATERAL unnest(
               ($24::text[])[upd.skips_lo:upd.skips_hi], ($25::text[])[upd.skips_lo:upd.skips_hi],
               ($26::timestamptz[])[upd.skips_lo:upd.skips_hi], ($27::timestamptz[])[upd.skips_lo:upd.skips_hi],
               ($28::bigint[])[upd.skips_lo:upd.skips_hi], ($29::bool[])[upd.skips_lo:upd.skips_hi])
           AS x(reason, detail, first_at, last_at, count, more)
    ON CONFLICT (schedule_id, reason, detail) DO UPDATE
       SET last_at = greatest(k.last_at, excluded.last_at), count = k.count + excluded.count, more = k.more OR excluded.more
)
SELECT (SELECT count(*) FROM term) AS terms, (SELECT coalesce(array_agg(place::int), '{}') FROM upd) AS applied,
       (SELECT coalesce(array_agg(id::text), '{}') FROM ins) AS made;

-- name: free_keys
-- Ended jobs whose window has passed let go of these keys.
UPDATE jobmaster.job SET unique_until = NULL
 WHERE unique_key = ANY($1::text[]) AND status > 3 AND unique_until <= now();

-- name: record_duplicates
-- Occurrences that met a job that holds their unique key: they are skips. In the transaction of their plan.
WITH missed AS MATERIALIZED (
    SELECT s.name, s.schedule_id, u.occurrence, coalesce(other.id::text, '') AS holder
      FROM unnest($1::text[], $2::uuid[], $3::timestamptz[]) AS u(name, id, occurrence)
      JOIN jobmaster.schedule AS s USING (name)
      LEFT JOIN jobmaster.job AS other ON other.unique_key = s.unique_key
                                      AND (other.status < 4 OR other.unique_until IS NOT NULL)
     WHERE NOT EXISTS (SELECT FROM jobmaster.job AS same WHERE same.id = u.id)
), skip AS (
    INSERT INTO jobmaster.schedule_skip AS k (schedule_id, schedule, reason, detail, first_at, last_at, count)
    SELECT schedule_id, name, 'duplicate', holder, min(occurrence), max(occurrence), count(*)
      FROM missed GROUP BY schedule_id, name, holder
    ON CONFLICT (schedule_id, reason, detail) DO UPDATE
       SET last_at = greatest(k.last_at, excluded.last_at), count = k.count + excluded.count
)
UPDATE jobmaster.schedule AS s SET runs = s.runs - m.count, skipped = s.skipped + m.count
  FROM (SELECT name, count(*) AS count FROM missed GROUP BY name) AS m WHERE s.name = m.name;

-- name: disable
-- A schedule that cannot be planned, alone, with the error as people will read it.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), upd AS (
    UPDATE jobmaster.schedule SET state = 'disabled', error = $4, plan_no = plan_no + 1, updated_at = now(),
           updated_by = 'planner'
     WHERE name = $2 AND plan_no = $3 AND state IN ('active', 'idle', 'done') AND EXISTS (SELECT FROM term)
)
SELECT count(*) AS terms FROM term;
