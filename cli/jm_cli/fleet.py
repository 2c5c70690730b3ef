"""What the commands about workers and buckets share: one look at the records, and how they are shown."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, NoReturn

from jm_cli.exits import CliError, ExitCode
from jm_cli.plain_text import safe
from jm_cli.render import moment, say
from jm_cli.running import ClientOptions

if TYPE_CHECKING:
    from jm_core.api import UnservedKind
    from jm_nats.census import Census, Unreadable

NEAR_MAX: Final = 3
LIKENESS_MIN: Final = 0.5  # ids end with random characters


async def take_census(options: ClientOptions) -> "Census":
    """Connect, look once, leave.

    Raises:
        ClusterUnknownError, AgentError.
    """
    from jm_nats.census import read_census  # noqa: PLC0415

    async with options.client() as client:
        return await read_census(client.link, client.names)


def not_found(kind: str, name: str, census: "Census", known: Iterable[str], unreadable: str) -> NoReturn:
    """There is no ``name``, or what is there cannot be read; ``unreadable`` is the KV to look for it in.

    Raises:
        CliError.
    """
    for record in census.unreadable:
        if (record.kv, record.key) == (unreadable, name):
            problem = f"the record of {kind} {name!r} cannot be read: {record.problem}; is it of another version?"
            raise CliError(ExitCode.UNEXPECTED, problem)
    near = near_matches(name, known)
    suggestion = f"did you mean {' or '.join(near)}?" if near else f"see 'jm {kind} list'"
    raise CliError(ExitCode.NOT_FOUND, f"cluster {census.cluster!r} has no {kind} {name!r}; {suggestion}")


def near_matches(name: str, known: Iterable[str]) -> list[str]:
    """Those that begin so, else those that look like it."""
    known = list(known)
    beginning = sorted(other for other in known if name and other.lower().startswith(name.lower()))
    return beginning[:NEAR_MAX] or get_close_matches(name, known, n=NEAR_MAX, cutoff=LIKENESS_MIN)


def say_unreadable(records: Iterable["Unreadable"]) -> None:
    """Nothing is left out in silence."""
    for record in records:
        say(safe(f"cannot be read: {record.kv} {record.key}, written {age(record.age_s)} ago: {record.problem}"))


def unserved_text(kind: "UnservedKind") -> str:
    """One line on due jobs that no bucket takes."""
    jobs = f"jobs of handler '{kind.handler}', lane '{kind.lane}', priority {kind.priority}"
    return safe(f"{jobs}, wait since {moment(kind.waiting_since)}: {kind.reason}")


def age(seconds: float) -> str:
    """Short, and no more exact than anybody wants to know."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, unit_s, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def size(count: int) -> str:
    """Bytes for people."""
    amount, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{amount:.1f} {units[0]}"
