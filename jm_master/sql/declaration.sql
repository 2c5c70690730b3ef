-- name: note_declared
-- What workers declare at the moment, each with its definition.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), noted AS (
    INSERT INTO jobmaster.schedule_version (name, digest, spec)
    SELECT u.name, u.digest, u.spec::jsonb FROM unnest($2::text[], $3::text[], $4::text[]) AS u(name, digest, spec)
     WHERE EXISTS (SELECT FROM term)
    ON CONFLICT (name, digest) DO UPDATE SET last_seen_at = now()
)
SELECT count(*) AS terms FROM term;

-- name: load_declared
-- All names that code declares, or has declared, with what table schedule says of them.
SELECT coalesce(v.name, s.name) AS name, v.digest, v.first_seen_at, v.last_seen_at, v.error, s.origin, s.state,
       s.digest AS in_force, now() AS now
  FROM jobmaster.schedule_version AS v
  FULL JOIN (SELECT name, origin, state, digest FROM jobmaster.schedule WHERE origin = 'static') AS own USING (name)
  LEFT JOIN jobmaster.schedule AS s ON s.name = coalesce(v.name, own.name)
 ORDER BY 1;

-- name: load_version
SELECT spec::text FROM jobmaster.schedule_version WHERE name = $1 AND digest = $2;

-- name: note_error
UPDATE jobmaster.schedule_version SET error = $3
 WHERE name = $1 AND digest = $2 AND error IS DISTINCT FROM $3;

-- name: become_idle
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
)
UPDATE jobmaster.schedule SET state = 'idle', updated_at = now(), updated_by = 'code'
 WHERE name = $2 AND state = 'active' AND EXISTS (SELECT FROM term);

-- name: become_active
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
)
UPDATE jobmaster.schedule SET state = 'active', updated_at = now(), updated_by = 'code'
 WHERE name = $2 AND state = 'idle' AND EXISTS (SELECT FROM term);

-- name: forget_versions
DELETE FROM jobmaster.schedule_version WHERE last_seen_at < now() - $1::float8 * interval '1 second';
