"""Every address of Postgres under deploy/ and in the documents is one that our driver takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = ("deploy", "docs")
DSN: Final = re.compile(r"postgres(?:ql)?://[^\s\"'`<>|)]+")


def found() -> list[tuple[str, str]]:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    texts = [(path, path.read_bytes().decode(errors="replace")) for path in files if path.suffix != ".pyc"]
    return [(path.relative_to(ROOT).as_posix(), dsn) for path, text in texts for dsn in DSN.findall(text)]


def trouble(dsn: str) -> str:
    """asyncpg looks for ~/.postgresql/root.crt otherwise, and a service has no home: it raises before it connects."""
    options = parse_qs(urlsplit(dsn).query)
    if options.get("sslmode", [""])[0] in ("verify-full", "verify-ca") and not options.get("sslrootcert"):
        return "verifies, and names no sslrootcert"
    return ""


def test_whoever_verifies_names_the_root():
    assert {file: dsn for file, dsn in found() if trouble(dsn)} == {}
    verifying = {file for file, dsn in found() if "sslmode=verify-full" in dsn}
    assert {"deploy/systemd/coordinator.env.example", "deploy/kubernetes/secret.example.yaml"} <= verifying


@pytest.mark.parametrize(
    ("dsn", "is_good"),
    [
        ("postgresql://u:p@db/jobs?sslmode=verify-full", False),
        ("postgresql://u:p@db/jobs?sslmode=verify-full&sslrootcert=", False),
        ("postgresql://u:p@db/jobs?sslmode=verify-full&sslrootcert=/etc/ca.pem", True),
        ("postgresql://u:p@db/jobs", True),
    ],
)
def test_one_that_does_not_is_found(dsn, is_good):
    assert (trouble(dsn) == "") is is_good


@pytest.mark.parametrize("unit", ["jm-coordinator.service", "jm-worker@.service"])
def test_what_the_service_reads_itself_is_readable_for_it(unit):
    """Its user is made up at the start: the folder is open to look into, and so is the certificate of the authority."""
    text = (ROOT / "deploy" / "systemd" / unit).read_text()
    assert re.search(r"^#   install -d -m 0755 /etc/jobmaster ", text, re.MULTILINE)
    assert re.search(r"^#   install -m 0644 ca\.pem /etc/jobmaster/", text, re.MULTILINE)
