-- Filled by the work on it.
DO $$ BEGIN END $$;
