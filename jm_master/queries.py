"""SQL lives in ``sql/*.sql``, each statement under a line ``-- name: …``. Read once, named here, nowhere built."""

import re
from functools import cache
from importlib.resources import files
from typing import Final

from jm_core.errors import InvalidNameError

DEFAULT_SCHEMA: Final = "jobmaster"
SCHEMA_PATTERN: Final = "[a-z_][a-z0-9_]{0,62}"
_schema = re.compile(SCHEMA_PATTERN)
_name = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def parse_schema(text: str) -> str:
    """``text`` unchanged when it can be a schema of ours.

    Raises:
        InvalidNameError: anything that would need quoting, and Postgres's own ``pg_…``.
    """
    if not _schema.fullmatch(text) or text.startswith("pg_"):
        raise InvalidNameError("schema", text, SCHEMA_PATTERN)
    return text


def in_schema(sql: str, schema: str) -> str:
    """``sql`` with the schema's real name. The files say ``jobmaster.`` so that they are SQL as they stand."""
    return sql.replace(f"{DEFAULT_SCHEMA}.", f"{parse_schema(schema)}.")


@cache
def named(group: str, schema: str = DEFAULT_SCHEMA) -> dict[str, str]:
    """The statements of ``sql/<group>.sql`` by name."""
    text = files("jm_master").joinpath("sql", f"{group}.sql").read_text(encoding="utf-8")
    _, *parts = _name.split(text)
    return {name: in_schema(sql.strip(), schema) for name, sql in zip(parts[::2], parts[1::2], strict=True)}
