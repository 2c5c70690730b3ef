-- name: say_agent
-- That we lead, and what our workers serve; $3 NULL: as before.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), said AS (
    INSERT INTO jobmaster.agent_state (agent, serves) SELECT $2, coalesce($3::jsonb, '{"routes": [], "handlers": {}}')
     WHERE EXISTS (SELECT FROM term)
    ON CONFLICT (agent) DO UPDATE SET seen_at = now(), serves = coalesce($3::jsonb, agent_state.serves)
)
SELECT count(*) AS terms FROM term;

-- name: load_other_agents
SELECT agent, serves::text, seen_at > now() - $2::float8 * interval '1 second' AS is_live
  FROM jobmaster.agent_state WHERE agent <> $1 ORDER BY agent;

-- name: is_agent_live
SELECT EXISTS (SELECT FROM jobmaster.agent_state WHERE agent = $1 AND seen_at > now() - $2::float8 * interval '1 second');

-- name: list_agents
SELECT l.agent, l.term, l.holder, s.seen_at, coalesce(j.jobs, 0) AS jobs_in_buckets
  FROM jobmaster.leader AS l
  LEFT JOIN jobmaster.agent_state AS s ON s.agent = l.agent
  LEFT JOIN (SELECT CASE WHEN strpos(bucket_id, '/') = 0 THEN 'main' ELSE left(bucket_id, strpos(bucket_id, '/') - 1) END
                    AS agent, count(*) AS jobs
               FROM jobmaster.job WHERE status IN (2, 3) GROUP BY 1) AS j ON j.agent = l.agent
 ORDER BY l.agent;

-- name: forget_agent
-- $7: the term that was taken in its place; somebody who has taken a later one since leads it. With rows that say who ($5)
-- and why ($9). Done again, because the answer was lost, it is recorded once.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $7 FOR SHARE
), audited AS (
    INSERT INTO jobmaster.operator_action (action_id, actor, action, reason, scope, parameters, matched, changed, finished_at)
    SELECT $8, $5, 'agent-give-up', $9, jsonb_build_object('agent', $1::text), jsonb_build_object('jobs_put_back', $10::int),
           1, 1, now()
     WHERE EXISTS (SELECT FROM term)
    ON CONFLICT (action_id) DO NOTHING RETURNING 1
), state AS (
    DELETE FROM jobmaster.agent_state WHERE agent = $1 AND EXISTS (SELECT FROM term)
), out AS (
    DELETE FROM jobmaster.outbox WHERE left(bucket_id, strpos(bucket_id, '/')) = $2 AND EXISTS (SELECT FROM term)
), orders AS (
    DELETE FROM jobmaster.cancel_order WHERE left(bucket_id, strpos(bucket_id, '/')) = $2 AND EXISTS (SELECT FROM term)
), mark AS (
    INSERT INTO jobmaster.setting (key, value) SELECT $3, $4 WHERE EXISTS (SELECT FROM term)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, updated_at = now()
), noted AS (
    INSERT INTO jobmaster.cluster_change (changed_by, reason, before, after)
    SELECT $5, $6, s.value, s.value
      FROM (SELECT coalesce((SELECT value FROM jobmaster.setting WHERE key = 'cluster'), '{}')::jsonb AS value) AS s
     WHERE EXISTS (SELECT FROM audited)
)
SELECT 1 FROM term;
