"""The only place that spells subjects, streams, consumers and KVs (docs/architecture.md, NATS objects). Pure.

Nothing is "cleaned" on the way: a part that is not a legal name is refused, so that two inputs never meet in one
name and no input becomes a subject of somebody else (BR-224, BR-225).
"""

import re
from dataclasses import dataclass
from typing import Final

from jm_core.errors import InvalidNameError
from jm_core.ids import HANDLER_PATTERN, NAME_PATTERN, parse_handler_name, parse_name

__all__ = [
    "CLUSTER_RULE",
    "CTL_CONSUMER",
    "HANDLER_PATTERN",
    "INBOX_RULE",
    "NAME_PATTERN",
    "PENDING_CONSUMER",
    "RECORDER_CONSUMER",
    "RUN_CONSUMER",
    "Names",
    "is_inbox",
    "is_reply",
    "parse_cluster_name",
    "parse_handler_name",
    "parse_inbox_prefix",
    "parse_name",
]

PENDING_CONSUMER: Final = "writer"
RECORDER_CONSUMER: Final = "recorder"
RUN_CONSUMER: Final = "run"
CTL_CONSUMER: Final = "ctl"

# What a receipt may be sent to. Not just any subject: a stranger names it, and the coordinator publishes with rights
# that the stranger may not have, on `$JS.API.…` for one. A very long one would not fit NATS' control line, which ends
# the connection.
INBOX_RULE: Final = (
    "at most 255 characters, tokens without white space, '*' and '>', the first one begins with '_INBOX'"
)
INBOX_CHARS_MAX: Final = 255
INBOX_PREFIX: Final = "_INBOX"
# What our own inboxes begin with; a token or two of their own follow (33 and 32 characters at most).
INBOX_PREFIX_CHARS_MAX: Final = 100
INBOX_PREFIX_RULE: Final = (
    f"a text that begins with '{INBOX_PREFIX}' and has letters, digits, '_', '-' and single dots, "
    f"at most {INBOX_PREFIX_CHARS_MAX} characters, like _INBOX_worker"
)
_inbox_prefix = re.compile(r"_INBOX[A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*").fullmatch
_mapped = re.compile(r"_R_(\.[A-Za-z0-9]+)+").fullmatch
_inbox = re.compile(r"_INBOX[^\s.*>]*(\.[^\s.*>]+)+").fullmatch

# `JM_a_B_PENDING` would be both bucket "PENDING" of cluster "a" and the front door of cluster "a_B".
CLUSTER_RULE: Final = f"{NAME_PATTERN}, without '_B_' in it or '_B' at its end"
_meets_a_bucket_stream = re.compile("_B(_|$)").search


def parse_cluster_name(text: str) -> str:
    """``text`` unchanged when it is a legal cluster name.

    Raises:
        InvalidNameError: outside ``NAME_PATTERN``, or one whose streams could be another cluster's bucket streams.
    """
    parse_name("cluster", text)
    if _meets_a_bucket_stream(text):
        raise InvalidNameError("cluster", text, CLUSTER_RULE)
    return text


def is_inbox(subject: str) -> bool:
    """Whether a receipt may be sent there: ``INBOX_RULE``."""
    return (
        len(subject) <= INBOX_CHARS_MAX and subject.isascii() and subject.isprintable() and _inbox(subject) is not None
    )


def is_reply(subject: str) -> bool:
    """Whether an answer may be sent there: an inbox, or what a server maps the inbox of another account to."""
    return is_inbox(subject) or (len(subject) <= INBOX_CHARS_MAX and _mapped(subject) is not None)


def parse_inbox_prefix(text: str) -> str:
    """``text`` unchanged when answers may be sent below it: one per user, and none reads another's.

    Raises:
        InvalidNameError: not ``INBOX_PREFIX_RULE``; ``is_inbox`` holds for all that a legal prefix begins.
    """
    if len(text) > INBOX_PREFIX_CHARS_MAX or _inbox_prefix(text) is None:
        raise InvalidNameError("inbox prefix", text, INBOX_PREFIX_RULE)
    return text


@dataclass(frozen=True, slots=True)
class Names:
    """Every name of one cluster on one agent.

    Raises:
        InvalidNameError: from the constructor for the cluster, from a method for the bucket, worker or other part.
    """

    cluster: str

    def __post_init__(self) -> None:
        parse_cluster_name(self.cluster)

    # The front door.

    @property
    def pending_stream(self) -> str:
        return f"JM_{self.cluster}_PENDING"

    @property
    def submit(self) -> str:
        return f"jm.{self.cluster}.submit"

    # Buckets.

    @property
    def bucket_stream_prefix(self) -> str:
        """What the stream names of all buckets start with, and nothing else's: to find streams left behind."""
        return f"JM_{self.cluster}_B_"

    def bucket_stream(self, bucket: str) -> str:
        return self.bucket_stream_prefix + parse_name("bucket", bucket)

    def run(self, bucket: str) -> str:
        return self._bucket(bucket, "run")

    def sched(self, bucket: str, n: int | str) -> str:
        """``n`` must be unique per message: the stream keeps one schedule a subject, the later one replaces it."""
        return self._bucket(bucket, f"sched.{parse_name('schedule', str(n))}")

    def sched_any(self, bucket: str) -> str:
        return self._bucket(bucket, "sched.*")

    def ctl(self, bucket: str) -> str:
        return self._bucket(bucket, "ctl")

    def _bucket(self, bucket: str, rest: str) -> str:
        return f"jm.{self.cluster}.bucket.{parse_name('bucket', bucket)}.{rest}"

    # Events.

    @property
    def events_stream(self) -> str:
        return f"JM_{self.cluster}_EVENTS"

    def events(self, bucket: str) -> str:
        return f"jm.{self.cluster}.events.{parse_name('bucket', bucket)}"

    @property
    def events_all(self) -> str:
        return f"jm.{self.cluster}.events.*"

    # KVs.

    @property
    def workers_kv(self) -> str:
        return f"jm_{self.cluster}_workers"

    @property
    def buckets_kv(self) -> str:
        return f"jm_{self.cluster}_buckets"

    @property
    def cluster_kv(self) -> str:
        return f"jm_{self.cluster}_cluster"

    # Core subjects.

    def api(self, name: str) -> str:
        return f"jm.{self.cluster}.api.{parse_name('api', name)}"

    @property
    def api_any(self) -> str:
        return f"jm.{self.cluster}.api.*"

    def worker_rpc(self, worker: str) -> str:
        return f"jm.{self.cluster}.worker.{parse_name('worker', worker)}.rpc"

    @property
    def wake(self) -> str:
        return f"jm.{self.cluster}.wake"
