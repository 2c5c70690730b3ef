-- What retention has removed, by kind, and where in table `job` it is (a number of chunks of pages).
CREATE TABLE jobmaster.retention (
    kind       text        PRIMARY KEY,
    removed    bigint      NOT NULL DEFAULT 0,
    removed_at timestamptz
);
CREATE TABLE jobmaster.retention_sweep (
    only_row  boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    chunk     int         NOT NULL DEFAULT 0,
    passes    bigint      NOT NULL DEFAULT 0,
    passed_at timestamptz                        -- when nothing was left that may go
);
INSERT INTO jobmaster.retention_sweep DEFAULT VALUES;
