"""Named bounds and their asserted relations. One place, so that every entry path refuses alike (BR-117)."""

from typing import Final

KIB: Final = 1024

# Messages (docs/wire-format.md).
MESSAGE_JOBS_MAX: Final = 500
MESSAGE_BYTES_MAX: Final = 512 * KIB
PACK_JOBS: Final = 500  # what our own client and writer put into one message
ARGS_BYTES_MAX: Final = 128 * KIB
ARGS_DEPTH_MAX: Final = 100  # explicit, because the depth at which a parser gives up differs per Python version
NUMBER_CHARS_MAX: Final = 4_300  # Python's own limit for reading an integer
NUMBER_EXPONENT_MAX: Final = 324  # of the smallest float, 5e-324
RESULT_BYTES_MAX: Final = 64 * KIB
ERROR_BYTES_MAX: Final = 8 * KIB
METADATA_BYTES_MAX: Final = 8 * KIB
UNIQUE_KEY_CHARS_MAX: Final = 200
UNIQUE_FOR_S_MAX: Final = 10 * 366 * 86_400.0
RESULT_IDS_MAX: Final = 500  # of one question for results
PROGRESS_NOTE_CHARS_MAX: Final = 500
REASON_BYTES_MAX: Final = 600  # of a rejection; what an error quotes is cut long before
PATH_CHARS_MAX: Final = 120  # of a field's path in an error
PROBLEM_CHARS_MAX: Final = 240  # of what an error says about a schedule's expression
RAW_KEPT_BYTES_MAX: Final = 1024 * KIB  # of a rejected message

# Times.
RUN_AT_YEAR_MIN: Final = 1970
RUN_AT_YEAR_MAX: Final = 9998  # room for an offset and a backoff before Python's and Postgres' last year
DELAY_S_MAX: Final = 10 * 366 * 86_400.0
TIMEOUT_S_MAX: Final = 7 * 86_400.0
ATTEMPTS_MAX: Final = 1_000_000

# Defaults (DESIGN, section 10).
TRANSIENT_THRESHOLD_S: Final = 600.0
HEARTBEAT_S: Final = 2.0
LEASE_S: Final = 10.0
JOB_TIMEOUT_S: Final = 300.0
MAX_ATTEMPTS: Final = 4
BACKOFF_BASE_S: Final = 10.0
BACKOFF_CAP_S: Final = 3600.0
BACKOFF_JITTER: Final = 0.2
RETENTION_S: Final = 30 * 86_400.0
SLOTS: Final = 100
DRAIN_TIMEOUT_S: Final = 30.0
RECONCILE_S: Final = 30.0
NO_BUCKET_THRESHOLD_S: Final = 150.0
SCHEDULE_ZONE: Final = "UTC"
SCHEDULE_IDLE_S: Final = 300.0  # a declared schedule that no worker has declared for so long
SCHEDULE_INACTIVE_S: Final = 3600.0
STALL_LIMIT_S: Final = 60.0  # an event loop that has not turned for so long is stuck for good
POSTGRES_PATIENCE_S: Final = 30.0

# Flow.
CREDIT_MAX: Final = 5_000  # jobs of one worker that may lie in its buckets
CREDIT_HORIZON_S: Final = 2.0  # of the worker's measured rate
RATE_PRIOR_PER_S: Final = 500.0  # of a worker that has not shown its own yet
CREDIT_WAIT_S: Final = 0.5  # how long a batch waits at most for credit that is about to come
FLUSH_S: Final = 0.05  # an attempt that outlives this sends `started`
REPLACE_MARGIN_S: Final = 2.0  # a job in a bucket that is due sooner may be about to start
PROGRESS_S: Final = 0.5  # between two reports of one attempt
SCHEDULE_LEAD_S: Final = 1.5  # a scheduled message is aimed this early; the server delivers 140-400 ms late
ASSIGN_BATCH_MAX: Final = 2_000  # of one statement: what is urgent waits behind it, and it must not be felt
SAVE_BATCH_JOBS: Final = 2_000
REBALANCE_AFTER_S: Final = 5.0
SUSPECT_LOSSES: Final = 2  # workers that died with a job; such jobs are started one by one in a worker,
SUSPECT_ALONE_S: Final = 5.0  # the next when the one before has ended, or has run for so long
EXIT_GRACE_S: Final = 0.5  # what a handler that was cancelled at a stop may take to end
SILENCE_SHARE: Final = 0.8  # of a lease: a worker heard of since is not gone, whatever became of its key
ADOPTIONS_MAX: Final = 4  # buckets that one worker drains at the same time

assert PACK_JOBS <= MESSAGE_JOBS_MAX
assert ARGS_BYTES_MAX < MESSAGE_BYTES_MAX
assert ARGS_DEPTH_MAX < ARGS_BYTES_MAX  # shorter texts are checked for neither: they cannot be too deep
assert LEASE_S > 3 * HEARTBEAT_S
assert SCHEDULE_LEAD_S < TRANSIENT_THRESHOLD_S
