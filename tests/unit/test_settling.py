"""What a process has loaded is taken out of the collector's sight once it is ready."""

from __future__ import annotations

import asyncio
import gc

import pytest

from jm_cli.groups import Group
from jm_cli.serving import settling
from jm_nats.health import HealthBoard


class Starting:
    def __init__(self) -> None:
        self.ready = asyncio.Event()

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Not called here."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Instead of the calls themselves, which would last for the whole test run."""
    made: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: made.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: made.append("freeze"))
    return made


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_heap_is_frozen_when_the_last_group_is_ready_and_garbage_goes_first(calls: list[str]):
    groups = [Group(process=Starting(), board=HealthBoard(name, "worker")) for name in ("a", "b")]
    async with settling(groups):
        groups[1].process.ready.set()
        await turns()
        assert calls == []
        groups[0].process.ready.set()
        await turns()
        assert calls == ["collect", "freeze"]


async def test_a_process_that_ends_before_it_is_ready_leaves_nobody_waiting(calls: list[str]):
    async with settling([Group(process=Starting(), board=HealthBoard("a", "worker"))]):
        await turns()
    await turns()
    assert calls == []
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "settle"]
