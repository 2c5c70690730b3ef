"""The file by which ``jm up`` tells other commands in the same folder where its servers are."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jm_cli import exits

DATA_VARIABLE: Final = "JM_DATA"
DEFAULT_DATA: Final = Path(".jm")
FILE_NAME: Final = "env"


@dataclass(frozen=True, kw_only=True)
class LocalEnv:
    """What the file says. Its servers are embedded ones: no secrets."""

    path: Path
    nats_url: str
    postgres_dsn: str
    cluster: str

    def variables(self) -> dict[str, str]:
        return {"JM_NATS_URL": self.nats_url, "JM_POSTGRES_DSN": self.postgres_dsn, "JM_CLUSTER": self.cluster}

    def write(self) -> None:
        """In one step: another command may be reading it."""
        fresh = self.path.with_name(f"{self.path.name}.new")
        fresh.write_text("".join(f"{name}={value}\n" for name, value in self.variables().items()))
        fresh.replace(self.path)


def find() -> LocalEnv | None:
    """In ``JM_DATA``, else in ``.jm`` of the current folder (not above it: another project's jobs are not ours)."""
    path = Path(os.environ.get(DATA_VARIABLE) or DEFAULT_DATA) / FILE_NAME
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    try:
        return LocalEnv(
            path=path,
            nats_url=found["JM_NATS_URL"],
            postgres_dsn=found["JM_POSTGRES_DSN"],
            cluster=found["JM_CLUSTER"],
        )
    except KeyError:
        return None


def mention(local: LocalEnv) -> None:
    """Should a server not answer: say why it was looked for there."""
    text = f"its address is from {local.path}, start it with 'jm up'"
    exits.add_hint(exits.ExitCode.NATS, text)
    exits.add_hint(exits.ExitCode.POSTGRES, text)
