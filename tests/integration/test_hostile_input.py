"""What a stranger sends is data: nothing of it is unpickled, imported, called by its name or read as SQL."""

from __future__ import annotations

import os
import pickle

import pytest

from jm_core import api
from tests.support.master import coordinating, job, linked
from tests.support.processes import Cluster


class Bomb:
    """Whoever unpickles it makes a folder."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


async def test_a_pickle_is_kept_as_bytes_and_a_name_of_pythons_own_is_no_handler(
    nats_server, database, cluster_name, tmp_path
):
    """BR-219."""
    bomb = pickle.dumps(Bomb(str(tmp_path / "exploded")))
    command = {"command": f"mkdir {tmp_path / 'ran'}"}
    async with (
        Cluster(nats_server.url, database, cluster_name) as cluster,
        linked(nats_server.url, cluster_name, lease_s=10.0) as bench,
    ):
        await cluster.start()
        (receipt,) = await bench.submit_and_wait(raw=bomb)
        assert receipt.status == "rejected"
        named = [
            job(name, args=command)
            for name in ("os.system", "builtins.eval", "subprocess.run", "tests.support.app.noop")
        ]
        await bench.submit_and_wait(*named)
        assert await cluster.ended([one["id"] for one in named]) == {"quarantined": len(named)}
    assert list(tmp_path.iterdir()) == []


HOSTILE = ["' OR 1=1 --", "a'; DROP TABLE job; --", "%", "_", "noo_", "noop' UNION SELECT 1"]


@pytest.mark.parametrize("field", ["handler", "lane", "schedule"])
async def test_a_filter_is_a_value_and_never_sql(nats_server, database, cluster_name, field):
    """BR-223: it matches nothing, or is refused; what is there stays."""
    async with (
        linked(nats_server.url, cluster_name) as bench,
        coordinating(nats_server.url, database, cluster_name),
    ):
        await bench.submit_and_wait(*[job() for _ in range(3)])
        for text in HOSTILE:
            reply = await bench.call(api.OP_JOB_LIST, {field: text})
            assert reply.get("error", {}).get("code") == "bad_request" or reply["data"]["jobs"] == [], text
        assert len((await bench.call(api.OP_JOB_LIST, {"handler": "noop"}))["data"]["jobs"]) == 3
