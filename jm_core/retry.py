"""Backoff policies as data, and what follows a failed attempt."""

from typing import Final

from msgspec import Struct

from jm_core import limits


class Fixed(Struct, frozen=True, tag="fixed"):
    """The same wait every time. Seconds."""

    delay_s: float


class Exponential(Struct, frozen=True, tag="exponential"):
    """``base_s * factor ** (failures - 1)``, at most ``cap_s``, spread by ``jitter`` (0.2 = plus or minus 20 %)."""

    base_s: float = limits.BACKOFF_BASE_S
    factor: float = 2.0
    cap_s: float = limits.BACKOFF_CAP_S
    jitter: float = limits.BACKOFF_JITTER


class Delays(Struct, frozen=True, tag="delays"):
    """A wait per failure; the last one repeats. Seconds."""

    delays_s: tuple[float, ...]


Backoff = Fixed | Exponential | Delays
DEFAULT_BACKOFF: Final = Exponential()


class RetryIn(Struct, frozen=True):
    delay_s: float


class GiveUp(Struct, frozen=True):
    reason: str


def delay_s(policy: Backoff, failures: int, *, u: float) -> float:
    """Seconds to wait after the ``failures``-th failure (1-based).

    Args:
        u: uniform in [0, 1), drawn by the caller; 0.5 means no jitter.

    Returns:
        Never negative, never above the cap, also where the power overflows (BR-172). What jitter would lift over the
        cap is mirrored below it: cut off there, half of all that wait the full cap would come back in one instant
        (BR-171).
    """
    match policy:
        case Fixed(delay_s=fixed):
            return fixed
        case Delays(delays_s=listed):
            return listed[min(failures, len(listed)) - 1]
        case Exponential(base_s=base, factor=factor, cap_s=cap, jitter=jitter):
            try:
                grown = base * factor ** (failures - 1)
            except OverflowError:
                grown = cap
            delay = min(cap, grown) * (1.0 + jitter * (2.0 * u - 1.0))
            return min(delay, 2.0 * cap - delay)


def after_failure(
    policy: Backoff,
    *,
    attempt: int,
    max_attempts: int,
    u: float,
    asked_s: float | None = None,
    may_retry: bool = True,
) -> RetryIn | GiveUp:
    """What follows a failed or timed-out attempt.

    Args:
        attempt: number of the start that failed, 1-based; starts that cost no attempt have already been added to
            ``max_attempts`` by the master.
        asked_s: the handler's own wish (``Retry(in_=…)``) instead of the policy's delay.
        may_retry: False after ``NoRetry``.
    """
    if not may_retry:
        return GiveUp("the handler asked for no retry")
    if attempt >= max_attempts:
        return GiveUp(f"attempt {attempt} of {max_attempts}")
    if asked_s is not None:
        return RetryIn(min(max(asked_s, 0.0), limits.DELAY_S_MAX))
    return RetryIn(delay_s(policy, attempt, u=u))


def problem_of(policy: Backoff) -> str | None:
    """Why ``policy`` is unusable, or None. Checked where a handler is declared, long before a job fails."""
    match policy:
        case Fixed(delay_s=fixed):
            return None if 0 <= fixed <= limits.DELAY_S_MAX else f"delay_s must be 0 to {limits.DELAY_S_MAX}"
        case Delays(delays_s=listed):
            ok = listed and all(0 <= d <= limits.DELAY_S_MAX for d in listed)
            return None if ok else f"delays_s must list at least one wait, each 0 to {limits.DELAY_S_MAX} seconds"
        case Exponential(base_s=base, factor=factor, cap_s=cap, jitter=jitter):
            ok = 0 < base <= cap <= limits.DELAY_S_MAX and factor >= 1 and 0 <= jitter <= 1
            return None if ok else "need 0 < base_s <= cap_s, factor >= 1, jitter 0 to 1"
