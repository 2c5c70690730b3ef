-- name: load_cluster
SELECT value FROM jobmaster.setting WHERE key = 'cluster';

-- name: change_cluster
-- From $2 (NULL: nothing was set yet) to $3, if nobody was quicker, with rows that say who and why: $7 is what was asked.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), kept AS (
    INSERT INTO jobmaster.setting (key, value) SELECT 'cluster', $3 WHERE EXISTS (SELECT FROM term)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, updated_at = now() WHERE setting.value = $2
    RETURNING 1
), noted AS (
    INSERT INTO jobmaster.cluster_change (changed_by, reason, before, after)
    SELECT $4, $5, coalesce($2, '{}')::jsonb, $3::jsonb WHERE EXISTS (SELECT FROM kept)
), audited AS (
    INSERT INTO jobmaster.operator_action (action_id, actor, action, reason, scope, parameters, matched, changed, finished_at)
    SELECT $6, $4, 'cluster-set', $5, '{}', $7::text::jsonb, 1, 1, now() WHERE EXISTS (SELECT FROM kept)
)
SELECT (SELECT count(*) FROM term) AS terms, (SELECT count(*) FROM kept) AS kept;

-- name: list_cluster_changes
SELECT changed_at, changed_by, reason, before::text, after::text
  FROM jobmaster.cluster_change ORDER BY change_id DESC LIMIT $1;
