"""A job that waits is told what it waits for, not something else (BR-176)."""

from datetime import UTC, datetime

import pytest

from jm_core.api import JobView
from jm_core.cluster import DEFAULT, ClusterMode, ClusterSettings
from jm_core.waiting import why_waiting

PASSIVE = ClusterSettings(mode=ClusterMode.PASSIVE)
HIGH, LOW = ("mail", 4), ("mail", 2)


def view(status="on_master", priority="low"):
    return JobView("id", "h", status, "mail", priority, 0, 4, datetime(2030, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("job", "given", "part"),
    [
        (view(), {"backlogs": {LOW, HIGH}}, "behind priority high:"),
        (view(), {"backlogs": {LOW, HIGH, ("mail", 5)}}, "behind priority critical, high:"),
        (view("in_bucket"), {"backlogs": {HIGH}}, "behind priority high:"),
        (view(), {"backlogs": {LOW}}, "behind older jobs"),
        (view(), {"backlogs": {("web", 4)}}, "next look"),
        (view("in_bucket"), {}, "free slot"),
        (view(), {"unserved": "nobody lives", "backlogs": {HIGH}}, "nobody lives"),
        (view(), {"settings": PASSIVE, "unserved": "nobody lives"}, "the cluster is passive"),
        (view("in_bucket"), {"settings": PASSIVE, "due_in_s": 9.0}, "the cluster is passive"),
        (view(), {"due_in_s": 9.0, "backlogs": {HIGH}}, None),
        (view("processing"), {"backlogs": {HIGH}}, None),
        (view("succeeded"), {"settings": PASSIVE}, None),
    ],
    ids=range(12),
)
def test_what_a_job_waits_for(job, given, part):
    facts = {"due_in_s": -1.0, "settings": DEFAULT, "backlogs": (), "unserved": None} | given
    said = why_waiting(job, **facts)
    assert said is None if part is None else part in said
