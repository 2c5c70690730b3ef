"""A NATS server that runs the configuration which the repository ships, deploy/nats, as it is: TLS, accounts, users."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jm_nats.child_process import ChildProcess
from jm_nats.config import NatsConfig
from jm_nats.embedded import NatsServer, find_nats_server
from jm_nats.local_server import HOST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FOLDER: Final = Path(__file__).resolve().parents[2] / "deploy" / "nats"
CLUSTER: Final = "prod"  # the one that accounts.conf is written for
HOSTNAME: Final = "nats.test"
ROLES: Final = ("submitter", "client", "worker", "coordinator", "operator", "monitoring")
VIOLATION: Final = "Violation"  # in each line of the server's log about something that was not allowed


def password(role: str) -> str:
    return f"the {role}'s p@ssword"


def inbox_prefix(role: str) -> str:
    return f"_INBOX_{role}"


def make_pki(folder: Path) -> None:
    """``ca.pem``, and ``server.pem`` with ``server.key`` for ``HOSTNAME``."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = f"subjectAltName=DNS:{HOSTNAME},IP:{HOST}"
    server = ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", names, "-addext", "basicConstraints=critical,CA:false"]
    for name, extra in (("ca", ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]), ("server", server)):
        command = ["openssl", "req", "-x509", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key"]
        subprocess.run([*command, "-out", f"{name}.pem", *extra], cwd=folder, check=True, capture_output=True)


def server_variables(pki: Path, store: Path, roles: Sequence[str] = ROLES) -> dict[str, str]:
    """What server.conf takes from the environment."""
    passwords = {f"NATS_PASSWORD_{role.upper()}": f'"{password(role)}"' for role in (*roles, "admin")}
    files = {"CERT": pki / "server.pem", "KEY": pki / "server.key", "CA": pki / "ca.pem"}
    return passwords | {f"NATS_TLS_{name}": f'"{path}"' for name, path in files.items()} | {"NATS_STORE": f'"{store}"'}


class DeployedNats(NatsServer):
    """server.conf; only the port is another one, and the folder of the store is a temporary one.

    Args:
        files: deploy/nats, or a copy of it that was changed as docs/deployment.md says; ``roles`` are its users.
    """

    def __init__(self, files: Path = FOLDER, roles: Sequence[str] = ROLES) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="jm-nats-deployed-")))
        self._files, self._roles = files, roles
        self.temporary = True
        self._belongings.folder = self.directory

    def _prepare(self) -> None:
        super()._prepare()
        if not (self.directory / "ca.pem").exists():
            make_pki(self.directory)

    def _spawn(self, lock_fd: int) -> ChildProcess:
        argv = [str(find_nats_server()), "--config", str(self._files / "server.conf"), "--addr", HOST]
        argv += ["--port", str(self.port), "--http_port", "0", "--ports_file_dir", str(self._ports_directory)]
        return ChildProcess(
            argv,
            cwd=self.directory,
            env=self.environment,
            log_path=self.log_path,
            lock_fd=lock_fd,
            stop_signal=signal.SIGTERM,
            temporary=self.directory,
        )

    @property
    def environment(self) -> dict[str, str]:
        """What the server is started with."""
        return {**os.environ, **server_variables(self.directory, self.directory, self._roles)}

    @property
    def url(self) -> str:
        return f"tls://{HOST}:{self.port}"

    def variables(self, role: str) -> dict[str, str]:
        """The environment of a process of ours that has this role."""
        return {
            "JM_NATS_URL": self.url,
            "JM_NATS_TLS_CA": str(self.directory / "ca.pem"),
            "JM_NATS_TLS_HOSTNAME": HOSTNAME,
            "JM_NATS_USER": role,
            "JM_NATS_PASSWORD": password(role),
            "JM_NATS_INBOX_PREFIX": inbox_prefix(role),
        }

    def config(self, role: str, changes: Mapping[str, str] | None = None) -> NatsConfig:
        return NatsConfig.from_env({**self.variables(role), **(changes or {})})

    def violations(self) -> list[str]:
        """What was refused so far, each as the server has logged it."""
        return [line for line in self.log_path.read_text(errors="replace").splitlines() if VIOLATION in line]
