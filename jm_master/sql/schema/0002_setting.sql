-- What a cluster has to remember about itself; 'agent' is the fingerprint of the NATS store that jobs were dispatched to.
CREATE TABLE jobmaster.setting (
    key        text        PRIMARY KEY,
    value      text        NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);
