-- name: free_keys
-- Ended jobs whose window has passed let go of the keys that these jobs want back.
UPDATE jobmaster.job AS j SET unique_until = NULL
  FROM jobmaster.job AS wants
 WHERE wants.id = ANY($1::uuid[]) AND j.unique_key = wants.unique_key AND j.status > 3 AND j.unique_until <= now();

-- name: requeue_jobs
-- What has ended waits again, as new: with all its attempts, at once or at $3. Its last end goes into `attempt`, where a
-- clean success and a quarantine have left no row yet. A key that another job holds by now stands in the way; of two
-- of the same key the newer one goes. What was taken back from a schedule's plan is the operator's from now on: a pause
-- must not take it back a second time.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), picked AS MATERIALIZED (
    SELECT id, status, unique_key FROM jobmaster.job
     WHERE id = ANY($2::uuid[]) AND EXISTS (SELECT FROM term) ORDER BY id FOR UPDATE
), judged AS MATERIALIZED (
    SELECT p.id, p.status, coalesce(other.id, first_value(p.id) OVER of_key) AS holder, p.unique_key
      FROM picked AS p LEFT JOIN jobmaster.job AS other
        ON other.unique_key = p.unique_key AND (other.status < 4 OR other.unique_until IS NOT NULL)
    WINDOW of_key AS (PARTITION BY p.unique_key ORDER BY p.status < 4, p.id DESC)
), free AS MATERIALIZED (
    SELECT id FROM judged WHERE status > 3 AND (unique_key IS NULL OR holder = id)
), ended AS (
    INSERT INTO jobmaster.attempt (job_id, attempt, dispatch, outcome, worker_id, bucket_id, started_at, finished_at,
                                   error)
    SELECT j.id, j.attempt, j.dispatch, CASE j.status WHEN 4 THEN 'succeeded' ELSE 'quarantined' END, j.worker_id,
           j.bucket_id, j.started_at, j.finished_at, j.error
      FROM jobmaster.job AS j JOIN free ON free.id = j.id WHERE j.status IN (4, 7)
    ON CONFLICT DO NOTHING
), upd AS (
    UPDATE jobmaster.job AS j
       SET status = 1, bucket_id = NULL, run_at = coalesce($3, now()), args = coalesce($4::text::jsonb, j.args),
           priority = coalesce($5, j.priority), lane = coalesce($6, j.lane),
           occurrence = CASE WHEN j.withdrawn IS NULL THEN j.occurrence END,
           max_attempts = coalesce($7, j.max_attempts), excused = j.attempt,
           started_at = NULL, finished_at = NULL, worker_id = NULL, result = NULL, error = NULL, progress = NULL,
           progress_note = NULL, cancel_requested_at = NULL, cancelled_by = NULL, cancel_reason = NULL
      FROM free WHERE j.id = free.id
    RETURNING j.id
)
SELECT (SELECT count(*) FROM term) AS terms, g.id::text, g.status AS was, upd.id IS NOT NULL AS changed,
       CASE WHEN g.unique_key IS NOT NULL AND g.holder <> g.id THEN g.holder::text END AS holder
  FROM (SELECT) AS one LEFT JOIN judged AS g ON true LEFT JOIN upd ON upd.id = g.id;

-- name: change_jobs
-- What waits on the master, and what its worker has given back ($3, $4): when, how urgent, in which lane. The dispatch
-- number grows, so that a message that is still on its way to the worker counts no more.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), picked AS MATERIALIZED (
    SELECT j.id, j.status, j.bucket_id, extract(epoch FROM j.run_at)::float8 AS run_at,
           j.status = 2 AND j.dispatch = r.dispatch IS TRUE AS is_back
      FROM jobmaster.job AS j LEFT JOIN unnest($3::uuid[], $4::int[]) AS r(id, dispatch) ON r.id = j.id
     WHERE j.id = ANY($2::uuid[]) AND EXISTS (SELECT FROM term) ORDER BY j.id FOR UPDATE OF j
), upd AS (
    UPDATE jobmaster.job AS j
       SET status = 1, bucket_id = NULL, dispatch = j.dispatch + CASE WHEN p.is_back THEN 1 ELSE 0 END,
           run_at = CASE WHEN $5 THEN now() ELSE coalesce($6, j.run_at) END,
           priority = coalesce($7, j.priority), lane = coalesce($8, j.lane)
      FROM picked AS p WHERE j.id = p.id AND (p.status = 1 OR p.is_back)
    RETURNING j.id
)
SELECT (SELECT count(*) FROM term) AS terms, p.id::text, p.status AS was, upd.id IS NOT NULL AS changed, p.bucket_id,
       p.run_at
  FROM (SELECT) AS one LEFT JOIN picked AS p ON true LEFT JOIN upd ON upd.id = p.id;

-- name: load_in_buckets
-- But for those that action $3 has dealt with: a request that comes twice must not ask back what went out again since.
SELECT id::text, dispatch, bucket_id FROM jobmaster.job AS j
 WHERE id = ANY($1::uuid[]) AND status = 2 AND left(bucket_id, strpos(bucket_id, '/')) = $2
   AND NOT EXISTS (SELECT FROM jobmaster.job_action AS a WHERE a.job_id = j.id AND a.action_id = $3);

-- name: load_states
SELECT id::text, status FROM jobmaster.job WHERE id = ANY($1::uuid[]);

-- name: done_before
-- What became of these jobs by the same action, should the request come a second time.
SELECT a.job_id::text, a.changed, a.note, j.status
  FROM jobmaster.job_action AS a LEFT JOIN jobmaster.job AS j ON j.id = a.job_id
 WHERE a.action_id = $1 AND a.job_id = ANY($2::uuid[]);

-- name: note_jobs
INSERT INTO jobmaster.job_action (action_id, job_id, changed, note)
SELECT $1, u.id, u.changed, u.note FROM unnest($2::uuid[], $3::boolean[], $4::text[]) AS u(id, changed, note);

-- name: note_action
-- Of jobs named by their ids: the first request of the action writes its row, each further one adds to it.
INSERT INTO jobmaster.operator_action AS a (action_id, actor, action, reason, scope, parameters, matched, changed, refused,
                                            finished_at)
VALUES ($1, $2, $3, $4, $5::text::jsonb, $6::text::jsonb, $7, $8, $9, now())
ON CONFLICT (action_id) DO UPDATE SET matched = a.matched + excluded.matched, changed = a.changed + excluded.changed,
                                      refused = a.refused + excluded.refused;

-- name: count_jobs_like
SELECT job_status AS status, count(*) AS jobs FROM jobmaster.jobs_like($1, $2, $3, $4, $5::text::jsonb, $6, $7, $8, $9, $10)
 GROUP BY 1;

-- name: pick_targets
-- What an action in bulk is about, picked once. Before `start_action`, in its transaction: this may look at every job, and
-- must not hold the leader's row meanwhile. $12: one more than may be picked.
WITH hit AS MATERIALIZED (
    SELECT job_id FROM jobmaster.jobs_like($2, $3, $4, $5, $6::text::jsonb, $7, $8, $9, $10, $11) LIMIT $12
), picked AS (
    INSERT INTO jobmaster.operator_target (action_id, job_id) SELECT $1, job_id FROM hit ON CONFLICT DO NOTHING
)
SELECT count(*)::int FROM hit;

-- name: is_there
SELECT EXISTS (SELECT FROM jobmaster.operator_action WHERE action_id = $1);

-- name: start_action
-- Its row; $8 jobs are picked, and agent $9's leader works it off.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
), act AS (
    INSERT INTO jobmaster.operator_action (action_id, actor, action, reason, scope, parameters, matched, finished_at, agent)
    SELECT $2, $3, $4, $5, $6::text::jsonb, $7::text::jsonb, $8::int, CASE WHEN $8 = 0 THEN now() END, $9
     WHERE EXISTS (SELECT FROM term)
    ON CONFLICT DO NOTHING
    RETURNING action_id
)
SELECT (SELECT count(*) FROM term) AS terms, (SELECT count(*) FROM act) AS started;

-- name: take_over_actions
-- Those of agents whose leader has said nothing for $3 seconds. One of the others gets each.
WITH term AS MATERIALIZED (
    SELECT FROM jobmaster.leader WHERE term = $1 FOR SHARE
)
UPDATE jobmaster.operator_action AS a SET agent = $2
 WHERE a.finished_at IS NULL AND a.agent IS DISTINCT FROM $2 AND EXISTS (SELECT FROM term)
   AND NOT EXISTS (SELECT FROM jobmaster.agent_state AS s
                    WHERE s.agent = a.agent AND s.seen_at > now() - $3::float8 * interval '1 second');

-- name: open_actions
SELECT action_id::text, actor, action, reason, parameters::text FROM jobmaster.operator_action
 WHERE finished_at IS NULL AND agent = $2 ORDER BY action_id LIMIT $1;

-- name: next_targets
SELECT job_id::text FROM jobmaster.operator_target WHERE action_id = $1 ORDER BY job_id LIMIT $2;

-- name: progress_action
-- With the batch that it counts, in one transaction; $3: those that were changed, the others were refused or are gone.
-- What counts is what is taken from the targets: a batch that is repeated, because an answer was lost, adds nothing.
WITH gone AS (
    DELETE FROM jobmaster.operator_target WHERE action_id = $1 AND job_id = ANY($2::uuid[]) RETURNING job_id
), counted AS (
    SELECT count(*) FILTER (WHERE job_id = ANY($3::uuid[])) AS changed,
           count(*) FILTER (WHERE NOT job_id = ANY($3::uuid[])) AS refused
      FROM gone
)
UPDATE jobmaster.operator_action AS a SET changed = a.changed + counted.changed, refused = a.refused + counted.refused
  FROM counted WHERE a.action_id = $1;

-- name: finish_action
UPDATE jobmaster.operator_action SET finished_at = now()
 WHERE action_id = $1 AND finished_at IS NULL
   AND NOT EXISTS (SELECT FROM jobmaster.operator_target WHERE action_id = $1);

-- name: get_action
SELECT action_id::text, at, actor, action, reason, scope::text, parameters::text, matched, changed, refused, finished_at
  FROM jobmaster.operator_action WHERE action_id = $1;

-- name: get_refusals
SELECT note, count(*) AS jobs, min(job_id::text) AS example FROM jobmaster.job_action
 WHERE action_id = $1 AND NOT changed GROUP BY note ORDER BY jobs DESC, note LIMIT 20;

-- name: list_actions
-- Newest first: ids are time-ordered.
SELECT action_id::text, at, actor, action, reason, left(scope::text, 1024) AS scope, left(parameters::text, 1024) AS parameters,
       matched, changed, refused, finished_at
  FROM jobmaster.operator_action
 WHERE ($1::uuid IS NULL OR action_id < $1) AND ($2::text IS NULL OR actor = $2) AND ($3::text IS NULL OR action = $3)
 ORDER BY action_id DESC LIMIT $4;

-- name: actions_of_job
-- Also of actions whose own rows retention has removed.
SELECT j.at, j.changed, j.note, j.action_id::text, coalesce(a.actor, '') AS actor, coalesce(a.action, 'action') AS action,
       coalesce(a.reason, '') AS reason, coalesce(a.parameters::text, '{}') AS parameters
  FROM jobmaster.job_action AS j LEFT JOIN jobmaster.operator_action AS a ON a.action_id = j.action_id
 WHERE j.job_id = $1 ORDER BY j.at, j.action_id;
