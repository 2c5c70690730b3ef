-- name: load_ahead
SELECT job_id::text AS id FROM jobmaster.cancel_ahead ORDER BY at DESC LIMIT $1;

-- name: remember
INSERT INTO jobmaster.cancel_ahead (job_id, action_id, actor, reason)
SELECT u.id, $2, $3, $4 FROM unnest($1::uuid[]) AS u(id)
ON CONFLICT DO NOTHING;

-- name: cancel_saved
-- Of the jobs that this transaction has saved, those that were cancelled before they came; with the audit of it.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), upd AS (
    UPDATE jobmaster.job AS j
       SET status = 6, finished_at = now(), cancel_requested_at = a.at, cancelled_by = a.actor, cancel_reason = a.reason,
           error = 'cancelled by ' || a.actor || coalesce(': ' || nullif(a.reason, ''), '')
      FROM jobmaster.cancel_ahead AS a
     WHERE j.id = a.job_id AND j.id = ANY($2::uuid[]) AND j.status = 1 AND j.dispatch = 0 AND EXISTS (SELECT FROM term)
    RETURNING j.id, a.action_id, a.actor, a.reason, a.at
), gone AS (
    DELETE FROM jobmaster.cancel_ahead WHERE job_id IN (SELECT id FROM upd)
), noted AS (
    INSERT INTO jobmaster.job_action (job_id, action_id, at, changed, note)
    SELECT id, action_id, at, true, 'it was queued still' FROM upd
    ON CONFLICT DO NOTHING
), acted AS (
    INSERT INTO jobmaster.operator_action AS act (action_id, at, actor, action, reason, scope, parameters, matched, changed,
                                                  finished_at)
    SELECT action_id, min(at), actor, 'cancel', reason, jsonb_build_object('ids', jsonb_agg(id)), '{}', count(*), count(*), now()
      FROM upd GROUP BY action_id, actor, reason
    ON CONFLICT (action_id) DO UPDATE SET matched = act.matched + excluded.matched, changed = act.changed + excluded.changed
)
SELECT id::text FROM upd;

-- name: come
SELECT a.job_id::text AS id, a.action_id::text, a.actor, a.reason
  FROM jobmaster.cancel_ahead AS a JOIN jobmaster.job AS j ON j.id = a.job_id
 LIMIT 500;

-- name: forgotten_ahead
-- Of these, the cancels that nobody waits for any more.
SELECT u.id::text FROM unnest($1::uuid[]) AS u(id)
 WHERE NOT EXISTS (SELECT FROM jobmaster.cancel_ahead AS a WHERE a.job_id = u.id);

-- name: settle_ahead
DELETE FROM jobmaster.cancel_ahead WHERE job_id = ANY($1::uuid[]);

-- name: forget_ahead
DELETE FROM jobmaster.cancel_ahead WHERE at < now() - $1::float8 * interval '1 second' RETURNING job_id::text AS id;
