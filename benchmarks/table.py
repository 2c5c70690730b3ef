"""The table of docs/performance.md, from what the benchmarks have saved with ``--save``.

python -m benchmarks.table            # print it
python -m benchmarks.table --write    # and put it into the page, between its two markers
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
PAGE = ROOT / "docs" / "performance.md"
BEGIN = "<!-- results: begin; written by `python -m benchmarks.table --write` -->"
END = "<!-- results: end -->"
HEAD = "| measure | command | value | yardstick | ratio | promised | met |\n|---|---|---|---|---|---|---|"
NOTHING = "No results are saved."
# First what the project is measured by; what is not named here follows by name.
ORDER = (
    "lifecycle", "enqueue", "foreign", "latency", "due", "instant", "future", "recovery", "recovery-processes",
    "backlog", "growth", "lifecycle-nodes", "scaling", "idle",
)  # fmt: skip
MET = {True: "yes", False: "**no**", None: "not judged"}

Result = Mapping[str, Any]


def load(folder: Path = RESULTS) -> dict[str, Result]:
    """By name, in the order of the table."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    place = {name: number for number, name in enumerate(ORDER)}
    return dict(sorted(found.items(), key=lambda item: (place.get(item[0], len(ORDER)), item[0])))


def table(results: Mapping[str, Result]) -> str:
    """Markdown: a row a benchmark, and what it was measured with."""
    if not results:
        return NOTHING
    rows = [_row(result) for result in results.values()]
    stamps = sorted({_stamp(result) for result in results.values()})
    return "\n".join([HEAD, *rows, "", *stamps])


def _row(result: Result) -> str:
    promised: Mapping[str, bool | None] = result["promised"]
    cells = [
        result["measure"],
        f"`{result['command']}`",
        f"{shown(result['value'])} {result['unit']}",
        shown(result["yardstick"]),
        shown(result["ratio"]),
        "<br>".join(_bound(bound, result) for bound in promised),
        "<br>".join(MET[kept] for kept in promised.values()),
    ]
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _bound(bound: str, result: Result) -> str:
    """``ratio >= 0.9``, as ``ratio ≥ 0.9: 0.93``."""
    key, sign, limit = bound.split()
    return f"{key} {'≥' if sign == '>=' else '≤'} {limit}: {shown(result[key])}"


def shown(value: object) -> str:
    match value:
        case None:
            return ""
        case dict():
            return ", ".join(f"{key} {shown(number)}" for key, number in value.items())
        case float() if value == int(value) and abs(value) >= 1000:
            return f"{int(value):,}"
        case int() | float():
            return f"{value:,}"
        case _:
            return str(value)


def _stamp(result: Result) -> str:
    machine = result["machine"]
    versions = {name: str(text).strip("<>").rpartition(" ")[2] for name, text in result["versions"].items()}
    with_what = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"Measured on {result['at'][:10]}, {machine['cores']} cores ({machine['processor']}): {with_what}."


def between_markers(page: str) -> str:
    """What the page says now."""
    return page.partition(BEGIN)[2].partition(END)[0].strip()


def with_table(page: str, text: str) -> str:
    """The page with ``text`` between its markers.

    Raises:
        ValueError: it has not exactly one pair of them.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"the page needs {BEGIN!r} and after it {END!r}, once each")
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    text = table(load())
    print(text)
    if options.write:
        PAGE.write_text(with_table(PAGE.read_text(), text))


if __name__ == "__main__":
    main()
