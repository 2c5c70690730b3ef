-- name: hold_term
-- The fence, for the transactions of this file: held to their end.
SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE;

-- name: insert_schedule
INSERT INTO jobmaster.schedule (name, state, origin, created_by, updated_by, digest, paused_by,
                                kind, expr, zone, handler, args, lane, priority, max_attempts, timeout_s, metadata,
                                unique_key, misfire, misfire_limit, misfire_window_s, overlap, jitter_s, starts_at, ends_at,
                                max_runs)
VALUES ($1, $2, $3, $4, $4, $5, CASE WHEN $2 = 'paused' THEN $4 END,
        $6, $7, $8, $9, $10::jsonb, $11, $12, $13, $14, $15::jsonb, $16, $17, $18, $19, $20, $21, $22, $23, $24)
ON CONFLICT (name) DO NOTHING
RETURNING name;

-- name: lock_schedule
SELECT s.*, clock_timestamp() AS now,
       (SELECT extract(epoch FROM clock_timestamp() - max(v.last_seen_at))::float8
          FROM jobmaster.schedule_version AS v WHERE v.name = s.name) AS unseen_s
  FROM jobmaster.schedule AS s WHERE s.name = $1 FOR UPDATE;

-- name: pick_planned
-- The schedule's jobs that are planned and not started, of instants after $2 (NULL: all). Locked, because the assigner may
-- be moving them.
SELECT id::text FROM jobmaster.job
 WHERE schedule = $1 AND status < 4 AND status <> 3 AND attempt = 0 AND occurrence IS NOT NULL
   AND ($2::timestamptz IS NULL OR occurrence > $2)
 ORDER BY id FOR UPDATE;

-- name: rewind
-- After a withdrawal ($2: now, $4: jobs taken back): everything that is not decided is planned anew from here, but what
-- is already late stays due. A job of a later instant that was left where it is (it has started: clocks differ) is not
-- planned twice, and an instant whose job somebody cancelled stays cancelled: from now on it is a skip. (Should that job
-- have been requeued and be among those taken back, it is none any more.)
WITH me AS MATERIALIZED (
    SELECT name, schedule_id, created_at, least($2, coalesce(next_at, since_at)) AS undecided
      FROM jobmaster.schedule WHERE name = $1
), kept AS MATERIALIZED (
    SELECT max(occurrence) AS at FROM jobmaster.job
     WHERE schedule = $1 AND occurrence > $2 AND status <> 6 AND id <> ALL($4::uuid[])
), withdrawn AS (
    UPDATE jobmaster.job SET withdrawn = true WHERE id = ANY($4::uuid[])
), unskipped AS (
    DELETE FROM jobmaster.schedule_skip AS k USING me
     WHERE k.schedule_id = me.schedule_id AND k.reason = 'cancelled' AND k.detail = ANY($4::uuid[]::text[])
    RETURNING k.detail
), back AS MATERIALIZED (
    SELECT count(*) AS count FROM jobmaster.job AS j
     WHERE j.id = ANY($4::uuid[]) AND j.withdrawn IS NULL
       AND NOT EXISTS (SELECT FROM unskipped AS u WHERE u.detail = j.id::text)
), left_out AS MATERIALIZED (
    SELECT me.name, me.schedule_id, j.id, j.occurrence
      FROM me JOIN jobmaster.job AS j ON j.schedule = me.name AND j.recorded_at >= me.created_at
     WHERE j.occurrence > me.undecided AND j.status = 6 AND j.withdrawn IS NULL AND j.id <> ALL($4::uuid[])
       AND j.occurrence > coalesce((SELECT at FROM kept), '-infinity')
), skip AS (
    INSERT INTO jobmaster.schedule_skip (schedule_id, schedule, reason, detail, first_at, last_at, count)
    SELECT schedule_id, name, 'cancelled', id::text, occurrence, occurrence, 1 FROM left_out
    ON CONFLICT (schedule_id, reason, detail) DO NOTHING
    RETURNING 1
)
UPDATE jobmaster.schedule AS s
   SET runs = s.runs - back.count - (SELECT count(*) FROM skip),
       skipped = s.skipped + (SELECT count(*) FROM skip) - (SELECT count(*) FROM unskipped),
       left_out = coalesce((SELECT array_agg(occurrence ORDER BY occurrence) FROM left_out), '{}'),
       generation = s.generation + 1, plan_no = s.plan_no + 1, plan_at = NULL,
       last_at = CASE WHEN s.last_at > $2 THEN kept.at ELSE s.last_at END,
       since_at = CASE WHEN $3 AND s.next_at <= $2 THEN s.since_at ELSE greatest($2, kept.at) END,
       next_at = CASE WHEN $3 AND s.next_at <= $2 THEN s.next_at END
  FROM kept, back
 WHERE s.name = $1;

-- name: change_spec
UPDATE jobmaster.schedule
   SET updated_by = $2, updated_at = now(), revision = revision + 1, error = NULL,
       state = CASE WHEN state IN ('disabled', 'done') THEN 'active' ELSE state END,
       floor_at = CASE WHEN state = 'disabled' THEN clock_timestamp() ELSE floor_at END,
       floor_reason = CASE WHEN state = 'disabled' THEN 'disabled' ELSE floor_reason END, digest = coalesce($3, digest),
       kind = $4, expr = $5, zone = $6, handler = $7, args = $8::jsonb, lane = $9, priority = $10, max_attempts = $11,
       timeout_s = $12, metadata = $13::jsonb, unique_key = $14, misfire = $15, misfire_limit = $16, misfire_window_s = $17,
       overlap = $18, jitter_s = $19, starts_at = $20, ends_at = $21, max_runs = $22
 WHERE name = $1;

-- name: stop
-- Paused by somebody, or inactive because no code declares it any more.
UPDATE jobmaster.schedule
   SET state = $2, updated_by = $3, updated_at = now(), revision = revision + 1,
       paused_by = CASE WHEN $2 = 'paused' THEN $3 END
 WHERE name = $1;

-- name: resume
-- What was left out meanwhile is recorded as skipped by the planner.
UPDATE jobmaster.schedule
   SET state = 'active', floor_at = clock_timestamp(), floor_reason = $3, error = NULL, paused_by = NULL, plan_at = NULL,
       plan_no = plan_no + 1, updated_by = $2, updated_at = now(), revision = revision + 1
 WHERE name = $1;

-- name: drop_queued
WITH dropped AS (
    SELECT name, schedule_id, queued_at FROM jobmaster.schedule WHERE name = $1 AND queued_at IS NOT NULL
), skip AS (
    INSERT INTO jobmaster.schedule_skip (schedule_id, schedule, reason, detail, first_at, last_at, count)
    SELECT schedule_id, name, $2, $3, queued_at, queued_at, 1 FROM dropped
    ON CONFLICT (schedule_id, reason, detail) DO NOTHING
)
UPDATE jobmaster.schedule AS s SET queued_at = NULL, plan_no = plan_no + 1, skipped = skipped + 1
  FROM dropped WHERE s.name = dropped.name;

-- name: delete_schedule
DELETE FROM jobmaster.schedule WHERE name = $1;

-- name: run_now
-- A job outside the plan. The plan that is being made may not have seen it: it is made again.
WITH job AS (
    INSERT INTO jobmaster.job (id, handler, args, status, priority, lane, run_at, max_attempts, timeout_s, queued_at,
                               unique_key, metadata, schedule)
    VALUES ($2, $3, $4::jsonb, 1, $5, $6, now(), $7, $8, now(), $9, $10::jsonb, $1)
    ON CONFLICT DO NOTHING
    RETURNING id
), planned AS (
    UPDATE jobmaster.schedule SET plan_no = plan_no + 1 WHERE name = $1
)
SELECT id::text FROM job;

-- name: free_key
-- Before it: an ended job whose window has passed lets go of the key.
UPDATE jobmaster.job SET unique_until = NULL WHERE unique_key = $1 AND status > 3 AND unique_until <= now();

-- name: find_in_the_way
-- Why a job was not made: the one with its id, or the one that holds its unique key.
SELECT (SELECT schedule FROM jobmaster.job WHERE id = $1) AS same_of,
       (SELECT id::text FROM jobmaster.job WHERE unique_key = $2 AND (status < 4 OR unique_until IS NOT NULL)
         LIMIT 1) AS holder;

-- name: get_schedule
-- With how many of its jobs are due or running, how many wait for their instant, and which ran last.
SELECT s.*, clock_timestamp() AS now, open.unfinished, open.ahead, ran.at AS ran_at,
       code.seen_at, code.note
  FROM jobmaster.schedule AS s
 CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE occurrence IS NULL OR occurrence <= now()) AS unfinished,
           count(*) FILTER (WHERE occurrence > now()) AS ahead
      FROM jobmaster.job AS j WHERE j.schedule = s.name AND j.status < 4) AS open
 CROSS JOIN LATERAL (
    SELECT max(occurrence) AS at FROM (
        SELECT occurrence FROM jobmaster.job AS j
         WHERE j.schedule = s.name AND j.occurrence <= now() AND j.status <> 6 ORDER BY occurrence DESC LIMIT 1) AS last) AS ran
 CROSS JOIN LATERAL (
    SELECT max(v.last_seen_at) AS seen_at,
           max(v.error) FILTER (WHERE v.last_seen_at > now() - interval '1 day') AS note
      FROM jobmaster.schedule_version AS v WHERE v.name = s.name) AS code
 WHERE s.name = $1;

-- name: list_schedules
-- Without arguments and metadata: a page has to fit one message.
SELECT s.name, s.kind, s.expr, s.zone, s.handler, '{}' AS args, s.lane, s.priority, s.max_attempts, s.timeout_s,
       NULL AS metadata, s.unique_key, s.misfire, s.misfire_limit, s.misfire_window_s, s.overlap, s.jitter_s, s.starts_at,
       s.ends_at, s.max_runs, s.state, s.error, s.origin, s.runs, s.skipped, s.skipped_more, s.last_at,
       s.queued_at, s.revision, s.created_at, s.created_by, s.updated_at, s.updated_by, s.paused_by,
       clock_timestamp() AS now,
       open.unfinished, open.ahead, ran.at AS ran_at, code.seen_at, code.note
  FROM jobmaster.schedule AS s
 CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE occurrence IS NULL OR occurrence <= now()) AS unfinished,
           count(*) FILTER (WHERE occurrence > now()) AS ahead
      FROM jobmaster.job AS j WHERE j.schedule = s.name AND j.status < 4) AS open
 CROSS JOIN LATERAL (
    SELECT max(occurrence) AS at FROM (
        SELECT occurrence FROM jobmaster.job AS j
         WHERE j.schedule = s.name AND j.occurrence <= now() AND j.status <> 6 ORDER BY occurrence DESC LIMIT 1) AS last) AS ran
 CROSS JOIN LATERAL (
    SELECT max(v.last_seen_at) AS seen_at,
           max(v.error) FILTER (WHERE v.last_seen_at > now() - interval '1 day') AS note
      FROM jobmaster.schedule_version AS v WHERE v.name = s.name) AS code
 WHERE ($1::text[] IS NULL OR s.state = ANY($1)) AND ($2::text IS NULL OR s.origin = $2)
   AND ($3::text IS NULL OR s.handler = $3) AND ($4::text IS NULL OR starts_with(s.name, $4))
   AND ($5::text IS NULL OR s.name > $5)
 ORDER BY s.name LIMIT $6;

-- name: list_skips
SELECT skip_id, schedule, reason, detail, first_at, last_at, count, more, recorded_at
  FROM jobmaster.schedule_skip
 WHERE ($1::text IS NULL OR schedule = $1) AND ($2::text IS NULL OR reason = $2) AND ($3::bigint IS NULL OR skip_id < $3)
 ORDER BY skip_id DESC LIMIT $4;
