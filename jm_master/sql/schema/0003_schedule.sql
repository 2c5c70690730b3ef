-- Recurring jobs: one row a schedule, its definition and how far it is planned. Names, states and policies:
-- jm_core/api_schedules.py. A row that plain SQL inserts (name, kind, expr, handler are enough) is planned within
-- seconds; after an UPDATE of a definition by plain SQL set plan_at = NULL, and what is planned already stays as it was.
--
-- fillfactor 50: a row is updated each time it is planned.
CREATE TABLE jobmaster.schedule (
    name             text        PRIMARY KEY,
    schedule_id      uuid        NOT NULL DEFAULT gen_random_uuid(),  -- of this creation; part of its jobs' ids
    kind             text        NOT NULL,
    expr             text        NOT NULL,
    zone             text,                         -- NULL: the cluster's
    handler          text        NOT NULL,
    args             jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(args) = 'object'),
    lane             text,                         -- NULL here and in the next three: the handler's default
    priority         smallint    CHECK (priority BETWEEN 1 AND 5),
    max_attempts     int         CHECK (max_attempts BETWEEN 1 AND 1000000),
    timeout_s        float8      CHECK (timeout_s > 0 AND timeout_s <= 604800),
    metadata         jsonb       CHECK (jsonb_typeof(metadata) = 'object'),
    unique_key       text,
    misfire          text        NOT NULL DEFAULT 'run_once' CHECK (misfire IN ('skip', 'run_once', 'run_all')),
    misfire_limit    int         NOT NULL DEFAULT 10 CHECK (misfire_limit BETWEEN 1 AND 1000),
    misfire_window_s float8      CHECK (misfire_window_s BETWEEN 60 AND 316224000),  -- NULL: no limit
    overlap          text        NOT NULL DEFAULT 'allow' CHECK (overlap IN ('allow', 'skip', 'queue_one')),
    jitter_s         float8      NOT NULL DEFAULT 0 CHECK (jitter_s BETWEEN 0 AND 316224000),
    starts_at        timestamptz,
    ends_at          timestamptz,
    max_runs         bigint      CHECK (max_runs BETWEEN 1 AND 1000000000),
    state            text        NOT NULL DEFAULT 'active'
                     CHECK (state IN ('active', 'paused', 'disabled', 'idle', 'inactive', 'done')),
    error            text,
    origin           text        NOT NULL DEFAULT 'dynamic' CHECK (origin IN ('static', 'dynamic')),
    digest           text,                         -- static: of the declaration in force
    runs             bigint      NOT NULL DEFAULT 0,  -- occurrences that became jobs, those ahead of now included
    skipped          bigint      NOT NULL DEFAULT 0,
    skipped_more     boolean     NOT NULL DEFAULT false,  -- `skipped` is a lower bound
    next_at          timestamptz,                  -- the first instant that is not decided; NULL: never looked at
    last_at          timestamptz,                  -- the last instant that became a job
    queued_at        timestamptz,                  -- the instant that waits for its predecessor (queue_one)
    floor_at         timestamptz,                  -- what was left out until here is skipped for floor_reason
    floor_reason     text,
    since_at         timestamptz NOT NULL DEFAULT now(),  -- no instant until here counts: it was made, or changed, then
    left_out         timestamptz[] NOT NULL DEFAULT '{}',  -- not decided, but not to be planned: somebody cancelled its job
    plan_at          timestamptz DEFAULT '-infinity',  -- when the planner looks next; NULL: at once
    plan_no          bigint      NOT NULL DEFAULT 0,  -- grows with every plan: a plan that was made before is refused
    generation       int         NOT NULL DEFAULT 1,  -- grows when planned jobs are taken back; part of the jobs' ids
    revision         bigint      NOT NULL DEFAULT 1,  -- grows with every change by people or code
    created_at       timestamptz NOT NULL DEFAULT now(),
    created_by       text        NOT NULL DEFAULT '',
    updated_at       timestamptz NOT NULL DEFAULT now(),
    updated_by       text        NOT NULL DEFAULT '',
    paused_by        text
) WITH (fillfactor = 50);

CREATE INDEX schedule_plan ON jobmaster.schedule (coalesce(plan_at, '-infinity')) WHERE state IN ('active', 'idle');
CREATE INDEX schedule_queued ON jobmaster.schedule (name) WHERE queued_at IS NOT NULL;

-- Instants that did not become jobs, a row for each run of them with one reason. `detail` tells the runs apart: the job
-- that was in the way, or the run's first instant.
CREATE TABLE jobmaster.schedule_skip (
    skip_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule_id uuid        NOT NULL,
    schedule    text        NOT NULL,
    reason      text        NOT NULL,              -- jm_core.api_schedules.SkipReason
    detail      text        NOT NULL DEFAULT '',
    first_at    timestamptz NOT NULL,
    last_at     timestamptz NOT NULL,
    count       bigint      NOT NULL,
    more        boolean     NOT NULL DEFAULT false,  -- at least `count`
    recorded_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (schedule_id, reason, detail)
);
CREATE INDEX schedule_skip_of ON jobmaster.schedule_skip (schedule, skip_id);

-- Declarations in code, as workers announce them: several of one name while versions of an application run side by side.
CREATE TABLE jobmaster.schedule_version (
    name          text        NOT NULL,
    digest        text        NOT NULL,
    spec          jsonb       NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT now(),
    last_seen_at  timestamptz NOT NULL DEFAULT now(),
    error         text,                            -- why it cannot be applied
    PRIMARY KEY (name, digest)
);

ALTER TABLE jobmaster.job ADD COLUMN schedule text;
ALTER TABLE jobmaster.job ADD COLUMN occurrence timestamptz;  -- NULL for a run-now job
ALTER TABLE jobmaster.job ADD COLUMN withdrawn boolean;  -- cancelled by a change of its schedule: its instant is planned anew
-- Both cost nothing for jobs without a schedule.
CREATE INDEX job_schedule ON jobmaster.job (schedule, occurrence) WHERE schedule IS NOT NULL;
CREATE INDEX job_schedule_open ON jobmaster.job (schedule) WHERE schedule IS NOT NULL AND status < 4;
