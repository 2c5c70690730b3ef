-- name: take_term
-- Waits for the statements of the leader before us, which hold the row FOR SHARE; after this none of them commits.
UPDATE jobmaster.leader SET term = term + 1, holder = $1, since = now() RETURNING term;
