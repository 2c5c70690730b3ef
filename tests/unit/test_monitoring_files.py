"""The dashboard and the alert rules against the names that are emitted: a renamed metric leaves no empty panel."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import promql_parser as promql
import pytest
import yaml

from jm_nats.telemetry import names
from jm_nats.telemetry.names import prometheus_name
from tests.support.command_lines import parsed
from tests.support.metric_queries import labels_of, metrics_in, plain, problems

ROOT: Final = Path(__file__).resolve().parents[2]
PROMETHEUS: Final = ROOT / "deploy" / "prometheus"
DASHBOARD: Final[dict[str, Any]] = json.loads((ROOT / "deploy" / "grafana" / "jobmaster.json").read_text())
RULES: Final[list[dict[str, Any]]] = [
    rule for group in yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
TESTS: Final[list[dict[str, Any]]] = yaml.safe_load((PROMETHEUS / "alerts.test.yaml").read_text())["tests"]
PANELS: Final = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

CASES: Final[list[dict[str, Any]]] = yaml.safe_load((PROMETHEUS / "alerts.cases.test.yaml").read_text())["tests"]

SEVERITIES: Final = {"critical", "warning"}

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


PANEL_EXPRESSIONS: Final = [
    pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
    for panel in PANELS
    for target in panel["targets"]
]


# -- both


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("sum(rate(jobmaster_attempts[5m]))", "no metric jobmaster_attempts"),
        ('jobmaster_pending{jobmaster_lane="a"}', "jobmaster_pending has no jobmaster_lane"),
        ("sum by (jobmaster_handler) (jobmaster_pending)", "jobmaster_handler is not in jobmaster_pending"),
        ("histogram_quantile(0.9, sum by (le) (rate(jobmaster_loop_lag_seconds[5m])))", "no metric jobmaster_loop"),
    ],
)
def test_what_is_not_emitted_is_found(expression, problem):
    assert any(problem in found for found in problems(expression))


# -- the dashboard


@pytest.mark.parametrize("expression", PANEL_EXPRESSIONS)
def test_a_panel_asks_for_what_is_emitted(expression):
    assert not problems(expression)


@pytest.mark.parametrize("panel", [pytest.param(panel, id=panel["title"]) for panel in PANELS])
def test_a_legend_names_labels_that_the_result_has(panel):
    for target in panel["targets"]:
        shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        tree = promql.parse(plain(target["expr"]))
        assert shown <= labels_of(tree), target["legendFormat"]


def test_every_metric_is_on_the_dashboard():
    shown = set().union(*(metrics_in(target["expr"]) for panel in PANELS for target in panel["targets"]))
    for spec in names.SPECS:
        name = prometheus_name(spec)
        assert shown & {name, f"{name}_bucket"}, f"{spec.name} is on no panel"


def test_variables_ask_for_what_is_emitted():
    queries = [v["definition"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    assert len(queries) == 2
    for query in queries:
        selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()
        assert not problems(selector)
        assert label in labels_of(promql.parse(selector))


def test_panels_have_ids_titles_and_places_of_their_own():
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({panel["title"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & own, f"{panel['title']} lies over another panel"
        cells |= own


# -- the alerts


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule["alert"]) for rule in RULES])
def test_an_alert_asks_for_what_is_emitted_and_says_what_to_do(rule):
    assert not problems(rule["expr"])
    assert rule["labels"]["severity"] in SEVERITIES
    assert re.fullmatch(r"\d+[mh]", rule["for"])
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook"}
    shown = set(re.findall(r"\$labels\.(\w+)", notes["summary"] + notes["description"]))
    assert shown <= result_labels(promql.parse(rule["expr"])), "a label that the result does not have is shown"
    page, _, anchor = notes["runbook"].partition("#")
    assert anchor in anchors(ROOT / page), f"{notes['runbook']} is not there"


def result_labels(tree: promql.Expr) -> set[str]:
    """Of the side that is shown: the left one, or the other where that is a number or the time of day."""
    while isinstance(tree, promql.BinaryExpr):
        is_number = isinstance(tree.lhs, promql.NumberLiteral) or tree.lhs.prettify() == "time()"
        tree = tree.rhs if is_number else tree.lhs
    if isinstance(tree, promql.Call) and tree.func.name == "histogram_quantile":
        tree = tree.args[1]
    if isinstance(tree, promql.AggregateExpr):
        return set(tree.modifier.labels) - {"le"} if tree.modifier else set()
    return labels_of(tree)


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_names_of_alerts_are_their_own():
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule["alert"]) for rule in RULES])
def test_an_alert_is_tested_silent_and_firing(rule):
    """promtool runs them; this holds without it: there is a test, of series that are emitted, of both sides."""
    (test,) = [test for test in TESTS if test["name"] == rule["alert"]]
    looks = [look for look in test["alert_rule_test"] if look["alertname"] == rule["alert"]]
    assert {bool(look["exp_alerts"]) for look in looks} == {True, False}
    for series in test["input_series"]:
        assert not problems(series["series"])
    asked = metrics_in(rule["expr"])
    given = {name for series in test["input_series"] for name in metrics_in(series["series"])}
    assert asked & given or "absent(" in rule["expr"]
    (fired,) = next(look["exp_alerts"] for look in looks if look["exp_alerts"])
    assert fired["exp_labels"]["severity"] == rule["labels"]["severity"]
    assert "{{" not in json.dumps(fired["exp_annotations"]), "as a person reads it"


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    ["check config scrape.yaml", "test rules alerts.test.yaml", "test rules alerts.cases.test.yaml"],
)
def test_promtool_agrees(arguments):
    promtool(*arguments.split())


def test_the_cases_are_of_series_that_are_emitted():
    assert len({case["name"] for case in CASES}) == len(CASES) > 20
    for case in CASES:
        for series in case["input_series"]:
            assert not problems(series["series"])


# -- what the panels show of several clusters and agents


TWO_CLUSTERS_OF_TWO_AGENTS: Final = {
    # what each of the leaders shows of itself: every agent's own figures, and of `due` what all of a cluster see
    "Jobs by state": (
        'jobmaster_queue_depth{jobmaster_lane="mail", jobmaster_priority="high", jobmaster_state="%s", %s}',
        {"due": ("100", "100", "10"), "in_bucket": ("1", "2", "4")},
        {"due": 110, "in_bucket": 7},
    ),
    "Workers by health": (
        'jobmaster_workers{jobmaster_health="%s", %s}', {"healthy": ("1", "2", "4")}, {"healthy": 7},
    ),
    "Buckets by state": ('jobmaster_buckets{jobmaster_state="%s", %s}', {"active": ("1", "2", "4")}, {"active": 7}),
    "Messages that wait": ("jobmaster_pending{%s%s}", {"": ("1", "2", "4")}, {"": 7}),
}  # fmt: skip
LEADERS: Final = (
    'jobmaster_cluster="prod", instance="c1"',
    'jobmaster_cluster="prod", jobmaster_agent="eu", instance="c2"',
    'jobmaster_cluster="shop", instance="c3"',
)


@needs_promtool
@pytest.mark.parametrize("title", list(TWO_CLUSTERS_OF_TWO_AGENTS))
def test_a_panel_adds_up_agents_and_clusters(title, tmp_path):
    pattern, figures, shown = TWO_CLUSTERS_OF_TWO_AGENTS[title]
    (panel,) = [panel for panel in PANELS if panel["title"] == title]
    series = [
        {"series": pattern % (value, leader), "values": f"{figure}x5"}
        for value, of_each in figures.items()
        for leader, figure in zip(LEADERS, of_each, strict=True)
    ]
    asked = " or ".join(target["expr"] for target in panel["targets"])
    label = re.findall(r"(jobmaster_(?:state|health))=\"%s", pattern)
    samples = [
        {"labels": "{" + "".join(f'{name}="{value}"' for name in label) + "}", "value": count}
        for value, count in shown.items()
    ]
    look = {"expr": asked.replace("$cluster", ".*").replace("$lane", ".*"), "eval_time": "4m", "exp_samples": samples}
    case = {"interval": "1m", "input_series": series, "promql_expr_test": [look]}
    (tmp_path / "panel.yaml").write_text(json.dumps({"evaluation_interval": "1m", "tests": [case]}))
    promtool("test", "rules", str(tmp_path / "panel.yaml"))


# -- what is scraped


def test_the_scrape_file_takes_the_rules_and_names_jobs_that_the_alert_looks_for():
    config = yaml.safe_load((PROMETHEUS / "scrape.yaml").read_text())
    assert config["rule_files"] == ["alerts.yaml"]
    jobs = [scrape["job_name"] for scrape in config["scrape_configs"]]
    (down,) = [rule["expr"] for rule in RULES if rule["alert"] == "JobmasterTargetDown"]
    pattern = re.search(r'job=~"([^"]+)"', down).group(1)
    assert jobs
    assert all(re.fullmatch(pattern, job) for job in jobs)


# -- what the page says to do


PAGE: Final = (ROOT / "docs" / "deployment.md").read_text()
COMMANDS: Final = sorted(set(re.findall(r"`jm ([^`]+)`", PAGE)))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_is_jms(command):
    arguments = shlex.split(command)
    takes = {"job show": ["ID"], "worker show": ["ID"], "worker": ["shop:jm"], "worker drain": ["ID"]}
    parsed([*arguments, *takes.get(command, [])], {})
