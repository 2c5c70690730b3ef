"""compose.yaml as the tests see it: parsed, its variables at their defaults; and its NATS nodes on loopback."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import yaml

from jm_nats.child_process import ChildProcess
from jm_nats.embedded import NatsServer, find_nats_server
from jm_nats.local_server import HOST
from tests.support.nats_cluster import NODES, NatsCluster, _free_ports

ROOT: Final = Path(__file__).resolve().parents[2]
COMPOSE_FILE: Final = ROOT / "compose.yaml"
NATS_CONFIG: Final = ROOT / "deploy" / "compose" / "nats.conf"
USER: Final = "jobmaster"
PASSWORD: Final = "12e5"  # looks like a number on purpose: compose.yaml has to quote it
_VARIABLE: Final = re.compile(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}")


def load() -> dict[str, Any]:
    """The file as it is, ``${VARIABLES}`` included."""
    return dict(yaml.safe_load(COMPOSE_FILE.read_text()))


def with_defaults(text: str, **values: str) -> str:
    """``text`` as compose would have it, with ``values`` in the environment."""
    return _VARIABLE.sub(lambda found: values.get(found["name"], found["default"] or ""), text)


def variables() -> dict[str, str | None]:
    """Each that the file asks for, and its default."""
    return {found["name"]: found["default"] for found in _VARIABLE.finditer(COMPOSE_FILE.read_text())}


def seconds(duration: str) -> float:
    """Of "1m30s"."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    parts = re.findall(r"(\d+)([smh])", duration)
    assert "".join(number + unit for number, unit in parts) == duration, f"not a duration: {duration}"
    return sum(int(number) * units[unit] for number, unit in parts)


def nats_environment(node: str, password: str = PASSWORD) -> dict[str, str]:
    """What compose.yaml gives to a node."""
    given = load()["services"][node]["environment"]
    return {name: with_defaults(value, NATS_PASSWORD=password) for name, value in given.items()}


class ComposeNode(NatsServer):
    """A node with the very configuration of deploy/compose, but for addresses and folders."""

    def __init__(self, number: int, port: int, route_ports: list[int]) -> None:
        super().__init__(port=port)
        self._number = number
        self._route_ports = route_ports
        self._monitoring_port = _free_ports(1, without=[port, *route_ports])[0]

    @property
    def url(self) -> str:
        return f"nats://{USER}:{PASSWORD}@{HOST}:{self.port}"

    @property
    def monitoring_url(self) -> str:
        return f"http://{HOST}:{self._monitoring_port}"

    def config(self) -> str:
        """The file with other addresses; each is there once, or the test no longer tests that file."""
        text = NATS_CONFIG.read_text()
        changes = {
            '"0.0.0.0:4222"': f'"{HOST}:{self.port}"',
            '"127.0.0.1:8222"': f'"{HOST}:{self._monitoring_port}"',
            '"0.0.0.0:6222"': f'"{HOST}:{self._route_ports[self._number - 1]}"',
            '"/data"': f'"{self.directory}"',
        }
        changes |= {
            f'"nats://nats-{number}:6222"': f'"nats://{HOST}:{port}"'
            for number, port in enumerate(self._route_ports, 1)
        }
        for old, new in changes.items():
            assert text.count(old) == 1, f"{NATS_CONFIG.name} has {old} {text.count(old)} times"
            text = text.replace(old, new)
        return f'{text}\nports_file_dir: "{self._ports_directory}"\n'

    def _spawn(self, lock_fd: int) -> ChildProcess:
        config = self.directory / "nats.conf"
        config.write_text(self.config())
        return ChildProcess(
            [str(find_nats_server()), "--config", str(config)],
            cwd=self.directory,
            env={**os.environ, **nats_environment(f"nats-{self._number}")},
            log_path=self.log_path,
            lock_fd=lock_fd,
            stop_signal=self.stop_signal,
            temporary=self.directory if self.temporary else None,
        )


class ComposeNats(NatsCluster):
    """The three of them."""

    def __init__(self) -> None:
        routes = _free_ports(NODES)
        own = _free_ports(NODES, without=routes)
        self.nodes = [ComposeNode(number, port, routes) for number, port in enumerate(own, 1)]
