-- name: make_agent
-- The row of an agent that leads for the first time.
INSERT INTO jobmaster.leader (agent, term, holder) VALUES ($1, 0, '') ON CONFLICT DO NOTHING;

-- name: take_term
-- Waits for the statements of the leader before us, which hold the row FOR SHARE; after this none of them commits.
-- $2: the latest term that we know of. A Postgres that was restored from a copy, or a standby that was promoted before
-- it had everything, may not know it any more; a leader of that term may still be there.
--
-- The rows of all agents are locked, for a moment, so that no two agents ever have one term: statements compare the term
-- alone. Beside other agents a forgotten term is outdone by far, because the terms that they had are forgotten, too.
WITH every AS MATERIALIZED (
    SELECT agent, term FROM jobmaster.leader ORDER BY agent FOR UPDATE
), found AS (
    SELECT term, (SELECT max(term) FROM every) AS latest, (SELECT count(*) FROM every) AS agents FROM every WHERE agent = $3
)
UPDATE jobmaster.leader AS l
   SET term = greatest(found.latest, $2::bigint + CASE WHEN found.term < $2::bigint AND found.agents > 1 THEN 1000 ELSE 0 END) + 1,
       holder = $1, since = now()
  FROM found WHERE l.agent = $3
RETURNING l.term, found.term AS found;
