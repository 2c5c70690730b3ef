"""``jm top``: the cluster as it is, again and again."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from jm_cli.exits import UsageError
from jm_cli.options import expanded
from jm_cli.render import print_json, print_line
from jm_cli.running import ClientOptions, run_briefly
from jm_cli.settings import JsonFlag

if TYPE_CHECKING:
    import asyncio

    from jm_cli.top_feed import Feed, TopView

INTERVAL_MIN_S: Final = 0.2
INTERVAL_MAX_S: Final = 86_400.0
REDRAW_S: Final = 0.5  # ages go on growing between two looks
QUIT_KEYS: Final = frozenset("qQ")

Show = Callable[["TopView"], None]


def add_to(root: typer.Typer) -> None:
    root.command("top")(top)


@expanded
def top(
    *,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help=f"Between two looks, at least {INTERVAL_MIN_S:g}.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, print it, and end.")] = False,
    as_json: JsonFlag = False,
    options: ClientOptions,
) -> None:
    """Watch workers, buckets, speed and the counts of jobs by state. q or Ctrl-C ends it.

    It goes on while NATS is away and says how old is what it shows. With --json: a document per interval, one a line.

    Examples:
        jm top
        jm top --once
        jm top --json --interval 10 >> cluster.ndjson
    """
    if not INTERVAL_MIN_S <= interval <= INTERVAL_MAX_S:  # also when it is no number
        raise UsageError(f"--interval is {interval:g}; it must be {INTERVAL_MIN_S:g} to {INTERVAL_MAX_S:g} seconds")
    run_briefly(_once(options, as_json=as_json) if once else _watch(options, interval, as_json=as_json))


async def _once(options: ClientOptions, *, as_json: bool) -> None:
    """Unlike the watch it does not wait for a NATS that is away: that is its result, with exit code 3."""
    from jm_cli.top_feed import Feed  # noqa: PLC0415

    async with options.client() as client:
        feed = Feed(client.names.cluster)
        await feed.look(client)
        (print_json if as_json else _print_frame)(feed.view())


async def _watch(options: ClientOptions, interval_s: float, *, as_json: bool) -> None:
    import asyncio  # noqa: PLC0415

    from jm_cli.top_feed import Feed  # noqa: PLC0415

    local = options.local
    cluster, config = options.name(local), options.nats_config(local)
    feed = Feed(cluster)
    ended = asyncio.Event()
    watching = asyncio.create_task(feed.run(config, interval_s))
    drawn = sys.stdout.isatty() and not as_json
    with _signals(ended), _screen(ended) if drawn else _lines(as_json=as_json) as show:
        try:
            await _until_ended(feed, watching, ended, show, REDRAW_S if drawn else interval_s)
        finally:
            watching.cancel()
            await asyncio.wait({watching})


async def _until_ended(
    feed: "Feed", watching: "asyncio.Task[None]", ended: "asyncio.Event", show: Show, every_s: float
) -> None:
    """Show what there is, once there is something to show.

    Raises:
        JmError: looking has no point any more: refused credentials, no such cluster.
    """
    import asyncio  # noqa: PLC0415

    ending = asyncio.create_task(ended.wait())
    first = asyncio.create_task(feed.looked.wait())
    try:
        await asyncio.wait({ending, watching, first}, return_when=asyncio.FIRST_COMPLETED)
        while not ended.is_set():
            if watching.done():
                watching.result()
            show(feed.view())
            await asyncio.wait({ending, watching}, timeout=every_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ending.cancel()
        first.cancel()


@contextmanager
def _signals(ended: "asyncio.Event") -> Iterator[None]:
    """Ctrl-C is how one leaves it: no error."""
    import asyncio  # noqa: PLC0415
    import signal  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, ended.set)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextmanager
def _lines(*, as_json: bool) -> Iterator[Show]:
    yield print_json if as_json else _print_frame


@contextmanager
def _screen(ended: "asyncio.Event") -> Iterator[Show]:
    """The terminal's other screen; what was on it before is back at the end."""
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    from jm_cli.top_frame import frame  # noqa: PLC0415

    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    with _quit_key(ended), Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda view: live.update(frame(view, lines=console.height), refresh=True)


@contextmanager
def _quit_key(ended: "asyncio.Event") -> Iterator[None]:
    """Keys come one by one and are not shown, where the keyboard is ours."""
    import asyncio  # noqa: PLC0415
    import os  # noqa: PLC0415
    import termios  # noqa: PLC0415
    import tty  # noqa: PLC0415

    if not sys.stdin.isatty():
        yield
        return
    keyboard = sys.stdin.fileno()

    def pressed() -> None:
        if QUIT_KEYS & set(os.read(keyboard, 64).decode(errors="replace")):
            ended.set()

    loop = asyncio.get_running_loop()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, pressed)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _print_frame(view: "TopView") -> None:
    from rich.console import Console  # noqa: PLC0415

    from jm_cli.top_frame import frame  # noqa: PLC0415

    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 160
    with console.capture() as captured:
        console.print(frame(view))
    for line in captured.get().splitlines():
        print_line(line.rstrip())
