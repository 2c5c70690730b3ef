"""The cluster of compose.yaml: up, down, who is healthy, and what is asked of it from inside its containers."""

from __future__ import annotations

import os
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.smoke.shell import SmokeError, output_of, say, succeeds

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.5
PORTS = ("NATS_1_PORT", "NATS_2_PORT", "NATS_3_PORT", "POSTGRES_PORT")
RUNNING = ("nats-1", "nats-2", "nats-3", "postgres", "coordinator", "worker")
NODES = ("nats-1", "nats-2", "nats-3")
OURS = "com.docker.compose"
CONTAINER = f'{{{{.ID}}}}\t{{{{.Label "{OURS}.service"}}}}\t{{{{.Names}}}}\t{{{{.State}}}}\t{{{{.Status}}}}'
PSQL = ("psql", "-U", "jobmaster", "-d", "jobmaster", "-qtA", "-v", "ON_ERROR_STOP=1")


@dataclass(frozen=True)
class Container:
    id: str
    service: str
    name: str
    state: str  # running, exited, …
    health: str  # healthy, unhealthy, starting, or nothing

    @property
    def host_name(self) -> str:
        """What a process inside knows itself by."""
        return self.id[:12]


class Cluster:
    """Args:
    project: the compose project; everything the test makes carries its name.
    docker: the address of the daemon, for DOCKER_HOST; None: the default one.
    environment: variables of compose.yaml.
    """

    def __init__(self, project: str, docker: str | None, environment: dict[str, str]) -> None:
        self.project = project
        host = {"DOCKER_HOST": docker} if docker else {}
        self.env = {**os.environ, **free_ports(), **host, **environment, "COMPOSE_PROJECT_NAME": project}
        self.compose = compose_command(self.env)
        self._helper = ""

    def run_compose(self, *arguments: str) -> str:
        return output_of([*self.compose, *arguments], env=self.env, cwd=ROOT)

    def docker(self, *arguments: str, given: str | None = None, timeout_s: float = 120.0) -> str:
        return output_of(["docker", *arguments], env=self.env, given=given, timeout_s=timeout_s)

    # -- up and down

    def up(self) -> None:
        self.run_compose("up", "--detach")
        self.wait_healthy()

    def down(self) -> None:
        if self._helper:
            self.docker("rm", "--force", self._helper)
        self.run_compose("down", "--volumes", "--timeout", "30")

    def wait_healthy(self, timeout_s: float = 180.0, services: tuple[str, ...] = RUNNING) -> None:
        def all_healthy() -> bool:
            found = [container for container in self.containers() if container.service in services]
            missing = set(services) - {container.service for container in found}
            return not missing and all(container.health == "healthy" for container in found)

        def shown() -> str:
            return ", ".join(f"{c.name}: {c.state} {c.health}" for c in self.containers() if c.health != "healthy")

        wait_until(all_healthy, timeout_s, f"{', '.join(services)} healthy", shown)

    # -- containers

    def containers(self, service: str | None = None) -> list[Container]:
        """Those of the services, dead ones included, in the order of their names."""
        filters = [f"label={OURS}.project={self.project}", f"label={OURS}.oneoff=False"]
        filters += [f"label={OURS}.service={service}"] if service else []
        flags = [part for value in filters for part in ("--filter", value)]
        lines = self.docker("ps", "--all", "--no-trunc", *flags, "--format", CONTAINER).splitlines()
        rows = sorted((line.split("\t") for line in lines), key=lambda row: row[2])
        return [Container(found, of, name, state, _health(status)) for found, of, name, state, status in rows]

    def container(self, service: str) -> Container:
        return self.containers(service)[0]

    # -- questions

    def sql(self, query: str) -> str:
        """Rows as psql prints them, unaligned."""
        return self.docker("exec", "--interactive", self.container("postgres").id, *PSQL, given=query).strip()

    def jm(self, *arguments: str, given: str = "", timeout_s: float = 120.0) -> str:
        """`jm …` in a container that nobody kills."""
        if not self._helper:
            name = f"{self.project}-helper"
            self.run_compose("run", "--detach", "--no-deps", "--name", name, "--entrypoint", "sleep", "jm", "infinity")
            self._helper = name
        return self.docker("exec", "--interactive", self._helper, "jm", *arguments, given=given, timeout_s=timeout_s)

    def leader(self) -> Container:
        """The coordinator that leads, by the record."""
        holder = self.sql("SELECT holder FROM jobmaster.leader")
        for container in self.containers("coordinator"):
            if holder.startswith(container.host_name):
                return container
        raise SmokeError(f"the leader, {holder or 'nobody'}, is none of the coordinators' containers")

    def has_caught_up(self, node: Container) -> bool:
        """Whether all streams of this NATS node are as new as their leaders."""
        address = "http://127.0.0.1:8222/healthz"
        return succeeds(["docker", "exec", node.id, "wget", "-q", "-O", "/dev/null", address], env=self.env)

    def logs(self) -> str:
        """The ends of all logs, and what the health checks of those said that are not healthy."""
        ill = [found.id for found in self.containers() if found.health == "unhealthy"]
        checks = self.docker("inspect", "--format", "{{.Name}} {{json .State.Health}}", *ill) if ill else ""
        return self.run_compose("logs", "--no-color", "--tail", "50") + checks


def wait_until(
    condition: Callable[[], object], timeout_s: float, what: str, shown: Callable[[], str] = lambda: ""
) -> float:
    """Seconds that it took.

    Raises:
        SmokeError: not in time.
    """
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            raise SmokeError(f"not within {timeout_s:g} s: {what}. {shown()}")
        time.sleep(POLL_S)
    return time.monotonic() - began


def compose_command(env: dict[str, str]) -> list[str]:
    """Version 2, as Docker's plugin or by itself, or docker-compose 1.29."""
    if "COMPOSE_COMMAND" in env:
        return env["COMPOSE_COMMAND"].split()
    if succeeds(["docker", "compose", "version"], env=env):
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    raise SmokeError("neither `docker compose` nor docker-compose is there (Debian: apt-get install docker-compose)")


def image_for(name: str, env: dict[str, str]) -> bool:
    """Whether the image is here or can be had."""
    if succeeds(["docker", "image", "inspect", name], env=env):
        return True
    say(f"pulling {name}")
    return succeeds(["docker", "pull", "--quiet", name], env=env, timeout_s=300.0)


def free_ports() -> dict[str, str]:
    """For what compose.yaml publishes, so that nothing is in the way; a variable that is set comes first."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
    found = {name: str(listener.getsockname()[1]) for name, listener in zip(PORTS, sockets, strict=True)}
    for listener in sockets:
        listener.close()
    return {name: os.environ.get(name, port) for name, port in found.items()}


def _health(status: str) -> str:
    """Out of "Up 5 seconds (health: starting)"."""
    _, _, inside = status.partition("(")
    return inside.rstrip(")").removeprefix("health: ") if status.startswith("Up") else ""
