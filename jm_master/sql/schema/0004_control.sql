-- Operator control. Who cancelled a job and why stays with it; `cancel_requested_at` is set for good with the request,
-- so that whatever its worker reports from then on ends the job cancelled.
ALTER TABLE jobmaster.job
    ADD COLUMN cancel_requested_at timestamptz,
    ADD COLUMN cancelled_by        text,
    ADD COLUMN cancel_reason       text;

-- Workers that have to be told of a cancel: written with it, deleted when the order has been sent and the job has ended.
-- So a lost message, or a leader that died after its COMMIT, costs a few seconds.
CREATE TABLE jobmaster.cancel_order (
    job_id    uuid        NOT NULL,
    dispatch  int         NOT NULL,
    bucket_id text        NOT NULL,
    why       text        NOT NULL,
    told      int         NOT NULL DEFAULT 0,      -- how often
    told_at   timestamptz,
    PRIMARY KEY (job_id, dispatch)
);

-- One row per operator action, written in the transaction of its (first) change. `actor` is what the caller claims.
CREATE TABLE jobmaster.operator_action (
    action_id   uuid        PRIMARY KEY,           -- made by the caller: a request that comes twice is done once
    at          timestamptz NOT NULL DEFAULT now(),
    actor       text        NOT NULL,
    action      text        NOT NULL,              -- jm_core.control.Action
    reason      text        NOT NULL,
    scope       jsonb       NOT NULL,              -- {"ids": [...]} or {"filter": {...}}
    parameters  jsonb       NOT NULL,
    matched     int         NOT NULL,
    changed     int         NOT NULL DEFAULT 0,
    refused     int         NOT NULL DEFAULT 0,
    finished_at timestamptz,                       -- NULL: the leader is at it
    agent       text                               -- whose leader; NULL where all was done at once
);
CREATE INDEX operator_action_open ON jobmaster.operator_action (action_id) WHERE finished_at IS NULL;

-- What an action in bulk has still to do; picked once, at its start.
CREATE TABLE jobmaster.operator_target (
    action_id uuid NOT NULL,
    job_id    uuid NOT NULL,
    PRIMARY KEY (action_id, job_id)
);

-- What became of each job of each action; `note` says why it was refused. A job's history is read from here.
CREATE TABLE jobmaster.job_action (
    job_id    uuid        NOT NULL,
    action_id uuid        NOT NULL,
    at        timestamptz NOT NULL DEFAULT now(),
    changed   boolean     NOT NULL,
    note      text        NOT NULL,
    PRIMARY KEY (job_id, action_id)
);
CREATE INDEX job_action_refused ON jobmaster.job_action (action_id) WHERE NOT changed;

-- Jobs by filter; a NULL lets everything pass. Simple enough to be inlined: what waits and what lies in buckets is found by
-- its own index, and the ended ones are not looked at where none of their states is asked for.
CREATE FUNCTION jobmaster.jobs_like(
    statuses smallint[], of_handler text, of_lane text, of_priority smallint, having_metadata jsonb,
    queued_from timestamptz, queued_until timestamptz, due_from timestamptz, due_until timestamptz,
    of_schedule text
) RETURNS TABLE (job_id uuid, job_status smallint) LANGUAGE sql STABLE AS $$
    SELECT j.id, j.status
      FROM (SELECT * FROM jobmaster.job WHERE status = 1 AND 1 = ANY(statuses)
            UNION ALL
            SELECT * FROM jobmaster.job WHERE status IN (2, 3) AND statuses && '{2,3}'::smallint[]
            UNION ALL
            SELECT * FROM jobmaster.job WHERE status > 3 AND statuses && '{4,5,6,7}'::smallint[]) AS j
     WHERE j.status = ANY(statuses)
       AND (of_handler IS NULL OR j.handler = of_handler) AND (of_lane IS NULL OR j.lane = of_lane)
       AND (of_priority IS NULL OR j.priority = of_priority)
       AND (having_metadata IS NULL OR j.metadata @> having_metadata)
       AND (queued_from IS NULL OR j.queued_at >= queued_from) AND (queued_until IS NULL OR j.queued_at < queued_until)
       AND (due_from IS NULL OR j.run_at >= due_from) AND (due_until IS NULL OR j.run_at < due_until)
       AND (of_schedule IS NULL OR j.schedule = of_schedule)
$$;

-- Cancels of jobs that are not saved yet: they lie in NATS, and are saved as cancelled. Kept for an hour.
CREATE TABLE jobmaster.cancel_ahead (
    job_id    uuid        PRIMARY KEY,
    action_id uuid        NOT NULL,
    actor     text        NOT NULL,
    reason    text        NOT NULL,
    at        timestamptz NOT NULL DEFAULT now()
);
