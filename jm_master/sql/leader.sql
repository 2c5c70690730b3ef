-- name: take_term
-- Waits for the statements of the leader before us, which hold the row FOR SHARE; after this none of them commits.
-- $2: the latest term that we know of. A Postgres that was restored from a copy, or a standby that was promoted before
-- it had everything, may not know it any more; a leader of that term may still be there.
WITH found AS (SELECT term FROM jobmaster.leader FOR UPDATE)
UPDATE jobmaster.leader AS l SET term = greatest(l.term, $2) + 1, holder = $1, since = now() FROM found
RETURNING l.term, found.term AS found;
