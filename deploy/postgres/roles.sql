-- Roles of least privilege for JobMaster's schema. Run by a superuser (or a role that may create roles) in the database
-- that the schema is or will be in; running it again is safe, and needed for nothing:
--
--   psql -d jobs -v ON_ERROR_STOP=1 -v schema=jobmaster -f roles.sql
--
-- None of the roles can log in. Give them to users of your own:
--
--   CREATE USER jm_migrate PASSWORD '...' IN ROLE jobmaster_owner;
--   ALTER USER jm_migrate SET role = jobmaster_owner;     -- what it makes belongs to the role, not to the user
--   CREATE USER jm_coordinator PASSWORD '...' IN ROLE jobmaster_coordinator;
--   CREATE USER anna PASSWORD '...' IN ROLE jobmaster_auditor;
--
-- Then `jm migrate` with the first, `jm coordinator --no-migrate` with the second.

\if :{?schema}
\else
    \set schema jobmaster
\endif

SELECT format('CREATE ROLE %I NOLOGIN', name)
  FROM unnest(ARRAY['jobmaster_owner', 'jobmaster_coordinator', 'jobmaster_auditor']) AS name
 WHERE NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = name)
\gexec

BEGIN;

-- The owner makes and changes tables. `jm migrate` says CREATE SCHEMA IF NOT EXISTS, for which Postgres wants the right to
-- make one even where it is there.
SELECT format('GRANT CONNECT, CREATE ON DATABASE %I TO jobmaster_owner', current_database()) \gexec
SELECT format('GRANT CONNECT ON DATABASE %I TO jobmaster_coordinator, jobmaster_auditor', current_database()) \gexec
CREATE SCHEMA IF NOT EXISTS :"schema";
ALTER SCHEMA :"schema" OWNER TO jobmaster_owner;
GRANT USAGE ON SCHEMA :"schema" TO jobmaster_coordinator, jobmaster_auditor;

-- What a migration of tomorrow makes is covered as well.
ALTER DEFAULT PRIVILEGES FOR ROLE jobmaster_owner IN SCHEMA :"schema"
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO jobmaster_coordinator;
ALTER DEFAULT PRIVILEGES FOR ROLE jobmaster_owner IN SCHEMA :"schema"
    GRANT USAGE ON SEQUENCES TO jobmaster_coordinator;
ALTER DEFAULT PRIVILEGES FOR ROLE jobmaster_owner IN SCHEMA :"schema"
    GRANT SELECT ON TABLES TO jobmaster_auditor;

-- What is there already, made by another role before this file was known: it changes hands.
SELECT format('ALTER %s %I.%I OWNER TO jobmaster_owner',
              CASE c.relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, n.nspname, c.relname)
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = :'schema'
   AND c.relkind IN ('r', 'p', 'v', 'S')
   AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = c.oid AND d.deptype IN ('a', 'i') AND c.relkind = 'S')
\gexec
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA :"schema" TO jobmaster_coordinator;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA :"schema" TO jobmaster_coordinator;
GRANT SELECT ON ALL TABLES IN SCHEMA :"schema" TO jobmaster_auditor;

COMMIT;
