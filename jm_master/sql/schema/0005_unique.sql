-- How long a job holds its unique key beyond its end: `unique_for_s` after it was queued. NULL: no longer.
ALTER TABLE jobmaster.job ADD COLUMN unique_until timestamptz;

-- At most one holder per key. Who is in here holds it, finished or not: what has ended and whose window has passed is
-- taken out (unique_until = NULL) by whoever comes next with its key. Costs a job without a key nothing.
CREATE UNIQUE INDEX job_key_held ON jobmaster.job (unique_key)
    WHERE unique_key IS NOT NULL AND (status < 4 OR unique_until IS NOT NULL);
DROP INDEX jobmaster.job_unique_key;
