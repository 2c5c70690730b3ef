-- Who changed the settings of the cluster (table `setting`, key 'cluster'), when, why, from what to what.
CREATE TABLE jobmaster.cluster_change (
    change_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    changed_at timestamptz NOT NULL DEFAULT now(),
    changed_by text        NOT NULL,
    reason     text        NOT NULL DEFAULT '',
    before     jsonb       NOT NULL,
    after      jsonb       NOT NULL
);

-- One leader an agent, each with a fence of its own. Terms are never the same in two rows (sql/leader.sql), so that
-- statements that compare the term alone mean one agent's leader. A version that knows of one leader only runs beside
-- this one as long as there is one agent.
ALTER TABLE jobmaster.leader ADD COLUMN agent text NOT NULL DEFAULT 'main';
ALTER TABLE jobmaster.leader DROP CONSTRAINT leader_pkey;
ALTER TABLE jobmaster.leader ALTER COLUMN only_row DROP NOT NULL;
ALTER TABLE jobmaster.leader ADD PRIMARY KEY (agent);
CREATE UNIQUE INDEX leader_term ON jobmaster.leader (term) WHERE term > 0;

-- What each agent's leader says of itself now and then. Not in `leader`: hot statements lock that.
CREATE TABLE jobmaster.agent_state (
    agent   text        PRIMARY KEY,
    seen_at timestamptz NOT NULL DEFAULT now(),
    serves  jsonb       NOT NULL                      -- lanes and priorities, and handlers: jm_master.agents.Serves
);
