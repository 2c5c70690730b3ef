"""Arrays as text, for ids and numbers.

asyncpg asks the abstract base classes about each element that it encodes, which costs more than everything else we do
with an id or a number; Postgres reads a text of them in no time.
"""

from collections.abc import Sequence

import msgspec

_encode = msgspec.json.Encoder().encode


def array_literal(values: Sequence[str | int | float | None]) -> str:
    """``{…}`` for a parameter ``$n::text::uuid[]``. Not for texts: JSON and Postgres escape differently."""
    return f"{{{_encode(values)[1:-1].decode()}}}"
