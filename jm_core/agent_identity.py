"""Whether the NATS store is the one that the record was written with. Both keep one fingerprint, made at first use."""

from enum import StrEnum


class Verdict(StrEnum):
    NEW = "new"  # neither has one: make it
    ADOPT = "adopt"  # a fresh Postgres takes what NATS has
    SAME = "same"
    LOST = "lost"  # NATS has none: its store is empty, or another
    OTHER = "other"  # NATS has one of somebody else

    @property
    def is_changed(self) -> bool:
        return self in {Verdict.LOST, Verdict.OTHER}


def judge(recorded: str | None, found: str | None) -> Verdict:
    """Args: recorded: what Postgres has; found: what NATS has."""
    if recorded is None:
        return Verdict.NEW if found is None else Verdict.ADOPT
    if found is None:
        return Verdict.LOST
    return Verdict.SAME if found == recorded else Verdict.OTHER
