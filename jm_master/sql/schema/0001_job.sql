-- One row a job: the audit record and the current state. status: jm_core.model.JobStatus.
--
-- fillfactor 70: a row is updated once or twice soon after it was written; the new version finds room on its own page.
CREATE TABLE jobmaster.job (
    id            uuid        PRIMARY KEY,
    handler       text        NOT NULL,
    args          jsonb       NOT NULL,
    status        smallint    NOT NULL CHECK (status BETWEEN 1 AND 7),
    priority      smallint    NOT NULL CHECK (priority BETWEEN 1 AND 5),
    lane          text        NOT NULL,
    bucket_id     text,
    run_at        timestamptz NOT NULL,
    attempt       int         NOT NULL DEFAULT 0,  -- starts of the handler
    excused       int         NOT NULL DEFAULT 0,  -- those of them that cost no attempt
    losses        int         NOT NULL DEFAULT 0,  -- workers that died with it before it was seen to start
    max_attempts  int         NOT NULL,
    dispatch      int         NOT NULL DEFAULT 0,  -- the fence: grows each time it is put into a bucket
    timeout_s     real        NOT NULL,
    unique_key    text,
    metadata      jsonb,
    trace         text,
    queued_at     timestamptz NOT NULL,            -- when NATS stored the message; tells a redelivery from a duplicate
    recorded_at   timestamptz NOT NULL DEFAULT now(),
    started_at    timestamptz,
    finished_at   timestamptz,
    worker_id     text,
    result        jsonb,
    error         text,
    progress      real,
    progress_note text
) WITH (fillfactor = 70);

-- What waits on the master. By handler too, so that a backlog of one handler is never scanned to find another's jobs.
CREATE INDEX job_waiting ON jobmaster.job (lane, priority, handler, run_at) WHERE status = 1;
-- What lies in a bucket.
CREATE INDEX job_in_bucket ON jobmaster.job (bucket_id) WHERE status IN (2, 3);
-- At most one unfinished job per key; a new one may come once the old one has ended.
CREATE UNIQUE INDEX job_unique_key ON jobmaster.job (unique_key) WHERE unique_key IS NOT NULL AND status < 4;

-- One row per start that was not a clean first success. Keyed by dispatch: a redelivered event finds its row there.
-- No foreign key: rows come only from statements that have just updated the job, and the check would lock it again.
CREATE TABLE jobmaster.attempt (
    job_id      uuid NOT NULL,
    attempt     int  NOT NULL,
    dispatch    int  NOT NULL,
    outcome     text NOT NULL,                     -- jm_core.model.AttemptOutcome, or quarantined
    worker_id   text,
    bucket_id   text,
    started_at  timestamptz,
    finished_at timestamptz,
    error       text,
    retry_in_s  real,
    PRIMARY KEY (job_id, dispatch)
);

-- A message that has to reach a bucket, written in the transaction that puts its jobs there and deleted when NATS has
-- it. Without the payload: that is built again from `job`.
CREATE TABLE jobmaster.outbox (
    outbox_id  uuid        PRIMARY KEY,            -- the Nats-Msg-Id
    bucket_id  text        NOT NULL,
    deliver_at timestamptz,                        -- NULL: at once; else a scheduled message
    job_ids    uuid[]      NOT NULL,
    dispatches int[],                              -- NULL: all are 1, their first
    created_at timestamptz NOT NULL DEFAULT now()
);
-- Ids do not compress, and trying costs more than the write.
ALTER TABLE jobmaster.outbox ALTER job_ids SET STORAGE EXTERNAL;

-- What could not become a job, or an event that could not be read, with the bytes as they came.
CREATE TABLE jobmaster.rejected (
    rejected_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source      text        NOT NULL UNIQUE,       -- stream, sequence, time and place in the message
    rejected_at timestamptz NOT NULL DEFAULT now(),
    raw         bytea       NOT NULL,
    raw_bytes   int         NOT NULL,              -- before it was cut
    reason      text        NOT NULL,
    job_id      text,
    handler     text,
    field       text
);

-- Lifecycle of a bucket once it is gone (while it lives, the NATS registry says all). An id is never used again.
CREATE TABLE jobmaster.bucket (
    bucket_id  text PRIMARY KEY,
    worker_id  text        NOT NULL,
    lane       text        NOT NULL,
    priority   smallint    NOT NULL,
    epoch      bigint      NOT NULL,
    reason     text        NOT NULL,
    jobs_returned int      NOT NULL DEFAULT 0,
    opened_at  timestamptz,
    deleted_at timestamptz NOT NULL DEFAULT now()
);

-- The fence of leadership: every writing statement of a leader locks this row FOR SHARE and compares the term.
CREATE TABLE jobmaster.leader (
    only_row boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    term     bigint      NOT NULL,
    holder   text        NOT NULL,
    since    timestamptz NOT NULL DEFAULT now()
);
INSERT INTO jobmaster.leader (term, holder) VALUES (0, '');
