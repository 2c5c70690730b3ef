import asyncio

from jm_nats.gate import Gate


async def waiting(gate, size):
    task = asyncio.create_task(gate.enter(size))
    await asyncio.sleep(0)
    return task


async def test_no_more_than_the_count_are_in():
    gate = Gate(2, 100)
    assert gate.try_enter(1)
    assert gate.try_enter(1)
    assert not gate.try_enter(1)
    third = await waiting(gate, 1)
    assert not third.done()
    gate.leave(1)
    await third


async def test_no_more_than_the_bytes_are_in():
    gate = Gate(10, 100)
    assert gate.try_enter(60)
    assert not gate.try_enter(41)
    assert gate.try_enter(40)


async def test_one_that_is_larger_than_all_room_goes_alone():
    gate = Gate(10, 100)
    assert gate.try_enter(1)
    large = await waiting(gate, 500)
    small = await waiting(gate, 1)
    gate.leave(1)
    await large
    await asyncio.sleep(0)
    assert not small.done()
    gate.leave(500)
    await small


async def test_the_order_is_that_of_coming():
    gate = Gate(10, 100)
    assert gate.try_enter(90)
    large, small = await waiting(gate, 50), await waiting(gate, 5)
    assert not gate.try_enter(5)
    await asyncio.sleep(0)
    assert not small.done()
    gate.leave(90)
    await asyncio.gather(large, small)


async def test_one_that_gives_up_makes_way():
    gate = Gate(10, 100)
    assert gate.try_enter(90)
    large, small = await waiting(gate, 50), await waiting(gate, 5)
    large.cancel()
    await asyncio.wait({large})
    await small


async def test_a_turn_that_comes_with_the_cancellation_is_passed_on():
    gate = Gate(1, 100)
    assert gate.try_enter(1)
    first, second = await waiting(gate, 1), await waiting(gate, 1)
    gate.leave(1)  # it is first's turn, who has not run yet
    first.cancel()
    await asyncio.wait({first})
    assert first.cancelled()
    await second
    gate.leave(1)
    assert gate.try_enter(1)
