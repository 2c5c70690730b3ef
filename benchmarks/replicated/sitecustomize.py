"""Run by Python at its start when this folder is on PYTHONPATH: nats.py's streams have ``JM_BENCH_REPLICAS`` replicas.

For the yardstick, which makes its streams without saying how many: in a cluster of NATS servers they shall be
replicated just as ours are.
"""

import os

from nats.js.manager import JetStreamManager

_add_stream = JetStreamManager.add_stream


async def _add_replicated(self, config=None, **params):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN003, ANN202
    return await _add_stream(self, config, **params, num_replicas=int(os.environ["JM_BENCH_REPLICAS"]))


JetStreamManager.add_stream = _add_replicated  # type: ignore[method-assign]
