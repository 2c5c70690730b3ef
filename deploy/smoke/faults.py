"""What is done to the cluster while it works. Each says what it did and, where it waits, how long that took."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from deploy.smoke.cluster import NODES, wait_until
from deploy.smoke.shell import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from deploy.smoke.cluster import Cluster, Container

Figures = dict[str, float]
NO_MAJORITY_S = 10.0
TAKEOVER_TIMEOUT_S = 60.0
CAUGHT_UP_TIMEOUT_S = 120.0


def kill_nats_node(cluster: Cluster) -> Figures:
    """One of three, the one whose log names the most leaders; it stays dead until the end (``restart_dead``)."""
    node = max((cluster.container(name) for name in NODES), key=lambda found: _leads(cluster, found))
    cluster.docker("kill", node.id)
    say(f"killed {node.name}")
    return {}


def kill_worker(cluster: Cluster) -> Figures:
    """The one that runs the most jobs; it stays dead until the end."""
    query = "SELECT worker_id FROM jobmaster.job WHERE status = 3 GROUP BY 1 ORDER BY count(*) DESC LIMIT 1"
    busiest = cluster.sql(query)
    workers = [worker for worker in cluster.containers("worker") if worker.state == "running"]
    chosen = next((worker for worker in workers if busiest.startswith(worker.host_name)), workers[0])
    cluster.docker("kill", chosen.id)
    say(f"killed {chosen.name}, worker {busiest or 'idle'}")
    return {}


def kill_leader(cluster: Cluster) -> Figures:
    """Wait until the other coordinator leads, then start the dead one again."""
    term = _term(cluster)
    leader = cluster.leader()
    cluster.docker("kill", leader.id)
    say(f"killed {leader.name}, the leader of term {term}")
    wait_s = wait_until(lambda: _term(cluster) > term, TAKEOVER_TIMEOUT_S, "another coordinator leads")
    say(f"another one leads after {wait_s:.1f} s")
    cluster.docker("start", leader.id)
    return {"leader_takeover_s": round(wait_s, 1)}


def kill_nats_nodes_in_turn(cluster: Cluster) -> Figures:
    """Each comes back, and has caught up, before the next one dies."""
    slowest_s = 0.0
    for name in NODES:
        node = cluster.container(name)
        if node.state != "running":
            _restart_node(cluster, node)
        cluster.docker("kill", node.id)
        say(f"killed {node.name}")
        slowest_s = max(slowest_s, _restart_node(cluster, node))
    return {"node_caught_up_s": round(slowest_s, 1)}


def kill_nats_majority(cluster: Cluster) -> Figures:
    """Two of three, so that nothing can be stored for a while; one comes back, the other stays dead until the end."""
    first, second = (cluster.container(name) for name in NODES[:2])
    cluster.docker("kill", first.id, second.id)
    say(f"killed {first.name} and {second.name}: NATS stores nothing")
    time.sleep(NO_MAJORITY_S)
    return {"majority_back_s": round(_restart_node(cluster, first), 1)}


def restart_postgres(cluster: Cluster) -> Figures:
    """Killed, as by the kernel: it has to recover from its log."""
    postgres = cluster.container("postgres")
    cluster.docker("kill", postgres.id)
    cluster.docker("start", postgres.id)
    say(f"killed and started {postgres.name}")
    wait_s = wait_until(
        lambda: cluster.container("postgres").health == "healthy", TAKEOVER_TIMEOUT_S, "postgres is healthy"
    )
    return {"postgres_back_s": round(wait_s, 1)}


FAULTS: dict[str, Callable[[Cluster], Figures]] = {
    "nats": kill_nats_node,
    "worker": kill_worker,
    "leader": kill_leader,
    "postgres": restart_postgres,
    "nats-majority": kill_nats_majority,
    "nats-turns": kill_nats_nodes_in_turn,
}
USUAL = ("nats", "worker")


def restart_dead(cluster: Cluster) -> Figures:
    """Start what was left dead, and wait until the NATS node has caught up with the others."""
    slowest_s = 0.0
    for container in cluster.containers():
        if container.service in NODES and container.state != "running":
            slowest_s = max(slowest_s, _restart_node(cluster, container))
        elif container.service in {"worker", "coordinator"} and container.state != "running":
            cluster.docker("start", container.id)
            say(f"started {container.name}")
    cluster.wait_healthy()
    return {"restarted_node_caught_up_s": round(slowest_s, 1)} if slowest_s else {}


def _restart_node(cluster: Cluster, node: Container) -> float:
    cluster.docker("start", node.id)
    wait_s = wait_until(
        lambda: cluster.has_caught_up(node), CAUGHT_UP_TIMEOUT_S, f"{node.name} has all streams and is up to date"
    )
    say(f"started {node.name}; it had caught up after {wait_s:.1f} s")
    return wait_s


def _term(cluster: Cluster) -> int:
    return int(cluster.sql("SELECT term FROM jobmaster.leader"))


def _leads(cluster: Cluster, node: Container) -> int:
    return cluster.docker("logs", node.id).count("new stream leader")
