"""PromQL held against the metrics that are emitted: a renamed one leaves no empty panel and no silent alert."""

from __future__ import annotations

from typing import Final

import promql_parser as promql

from jm_nats.telemetry import names
from jm_nats.telemetry.names import Kind, prometheus_name

SCRAPED: Final = {"job", "instance"}  # labels that Prometheus itself adds


def _series() -> dict[str, set[str]]:
    """Every series that is emitted, with its labels, as the exporter for Prometheus writes them."""
    found: dict[str, set[str]] = {"up": set(SCRAPED), "process_start_time_seconds": set(SCRAPED)}
    for spec in names.SPECS:
        attributes = {*spec.attributes, names.CLUSTER, names.AGENT}
        labels = {attribute.replace(".", "_") for attribute in attributes} | SCRAPED
        name = prometheus_name(spec)
        if spec.kind is Kind.HISTOGRAM:
            found |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            found[name] = labels
    return found


SERIES: Final = _series()


def plain(expression: str) -> str:
    """Grafana's own variables stand for a length of time here, and for a name inside quotes."""
    return expression.replace("$__rate_interval", "5m").replace("$__range", "5m")


def problems(expression: str) -> list[str]:
    """What of an expression is not emitted: metrics, labels that are selected by, labels that are grouped by."""
    found: list[str] = []

    def look(node: promql.Expr) -> bool:
        if isinstance(node, promql.VectorSelector):
            labels = SERIES.get(node.name or "")
            if labels is None:
                found.append(f"no metric {node.name}")
            else:
                found.extend(f"{node.name} has no {m.name}" for m in node.matchers.matchers if m.name not in labels)
        elif isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            missing = set(node.modifier.labels) - labels_of(node.expr)
            found.extend(f"{name} is not in {node.expr.prettify()}" for name in sorted(missing))
        return True

    promql.walk(promql.parse(plain(expression)), look)
    return found


def labels_of(expression: promql.Expr) -> set[str]:
    """Labels that some series of it may have."""
    labels: set[str] = set()

    def look(node: promql.Expr) -> bool:
        if isinstance(node, promql.VectorSelector):
            labels.update(SERIES.get(node.name or "", set()))
        return True

    promql.walk(expression, look)
    return labels


def metrics_in(expression: str) -> set[str]:
    found: set[str] = set()

    def look(node: promql.Expr) -> bool:
        if isinstance(node, promql.VectorSelector):
            found.add(node.name or "")
        return True

    promql.walk(promql.parse(plain(expression)), look)
    return found
