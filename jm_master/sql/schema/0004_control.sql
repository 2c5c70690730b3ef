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
    action_id   uuid        PRIMARY KEY,           -- made by the caller: a repeated request is recognised
    at          timestamptz NOT NULL DEFAULT now(),
    actor       text        NOT NULL,
    action      text        NOT NULL,              -- jm_core.control.Action
    reason      text        NOT NULL DEFAULT '',
    scope       jsonb       NOT NULL,              -- {"ids": [...]} or {"filter": {...}}
    parameters  jsonb       NOT NULL DEFAULT '{}',
    matched     int         NOT NULL DEFAULT 0,
    changed     int         NOT NULL DEFAULT 0,
    refused     int         NOT NULL DEFAULT 0,
    refusals    jsonb       NOT NULL DEFAULT '{}', -- why -> how many
    finished_at timestamptz                        -- NULL: the leader is at it
);
CREATE INDEX operator_action_open ON jobmaster.operator_action (action_id) WHERE finished_at IS NULL;

-- What an action in bulk has still to do; picked once, at its start.
CREATE TABLE jobmaster.operator_target (
    action_id uuid NOT NULL,
    job_id    uuid NOT NULL,
    PRIMARY KEY (action_id, job_id)
);

-- Which job was changed by which action (and which was named by its id and refused). A job's history is read from here.
CREATE TABLE jobmaster.job_action (
    job_id    uuid        NOT NULL,
    action_id uuid        NOT NULL,
    at        timestamptz NOT NULL DEFAULT now(),
    changed   boolean     NOT NULL,
    note      text        NOT NULL DEFAULT '',
    PRIMARY KEY (job_id, action_id)
);
