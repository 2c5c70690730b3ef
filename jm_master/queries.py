"""SQL lives in ``sql/*.sql``, each statement under a line ``-- name: …``. Read once, named here, nowhere built."""

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Final

from jm_core.errors import InvalidNameError, InvalidSettingError

DEFAULT_SCHEMA: Final = "jobmaster"
CLUSTER_PLACE: Final = "{cluster}"
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


def schema_of(template: str, cluster: str) -> str:
    """The schema of a cluster: ``template`` with its name in place of ``{cluster}``, in lower case and with ``_`` for
    ``-``. A template without it is the schema itself.

    Raises:
        InvalidNameError: that is no name for a schema.
    """
    return parse_schema(template.replace(CLUSTER_PLACE, cluster.lower().replace("-", "_")))


def schemas_of(template: str, clusters: Sequence[str]) -> dict[str, str]:
    """By cluster, each its own.

    Raises:
        InvalidSettingError: two of them would share one: nothing would keep their jobs apart.
        InvalidNameError: see ``schema_of``.
    """
    schemas: dict[str, str] = {}
    for cluster in clusters:
        schema = schema_of(template, cluster)
        other = next((other for other, taken in schemas.items() if taken == schema), None)
        if other is not None:
            raise InvalidSettingError(
                f"clusters {other!r} and {cluster!r} would share the schema {schema!r}; each needs its own: put "
                f"{CLUSTER_PLACE} into --schema (JM_POSTGRES_SCHEMA), for example jm_{CLUSTER_PLACE}, or choose names "
                "that differ in more than case and dashes"
            )
        schemas[cluster] = schema
    return schemas


def in_schema(sql: str, schema: str) -> str:
    """``sql`` with the schema's real name. The files say ``jobmaster.`` so that they are SQL as they stand."""
    return sql.replace(f"{DEFAULT_SCHEMA}.", f"{parse_schema(schema)}.")


@cache
def named(group: str, schema: str = DEFAULT_SCHEMA) -> dict[str, str]:
    """The statements of ``sql/<group>.sql`` by name."""
    text = files("jm_master").joinpath("sql", f"{group}.sql").read_text(encoding="utf-8")
    _, *parts = _name.split(text)
    return {name: in_schema(sql.strip(), schema) for name, sql in zip(parts[::2], parts[1::2], strict=True)}
