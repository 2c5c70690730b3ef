from __future__ import annotations

import asyncio

import pytest

from jm_core.errors import InvalidNameError, InvalidSettingError
from jm_master.checks import check_postgres
from jm_master.config import CoordinatorConfig, PostgresConfig, redacted

SECRET = "s3cr"


@pytest.mark.parametrize(
    "dsn",
    [
        "",
        "host=db password=s3cr",
        "mysql://jm:s3cr@db/jobs",
        "postgresql://jm:s3cr/et@db:5432/jobs",
        "postgresql://jm:s3cr#et@db/jobs",
        "postgresql://jm:s3cr?et@db/jobs",
        "postgresql://jm:s3cr et@db/jobs",
        "postgresql://jm:x@db:s3cr/jobs",
        "postgresql://jm:x@db:99999999/s3cr",
        "postgresql://jm:x@[s3cr/jobs",
    ],
)
def test_a_dsn_that_cannot_be_read_is_refused_without_quoting_it(dsn):
    with pytest.raises(InvalidSettingError) as caught:
        PostgresConfig(dsn=dsn)
    assert SECRET not in str(caught.value)
    assert "postgresql://user:password@host:5432/database" in str(caught.value)


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://jm:s3cr%40%2F@db:5432/jobs?sslmode=require&password=s3cr", "db:5432/jobs"),
        ("postgres://jm@db/jobs", "db/jobs"),
        ("postgres://jm:s3cr@@db/jobs", "db/jobs"),
        ("postgresql://jm:s3cr@a:1,b:2/jobs", "a:1,b:2/jobs"),
        ("postgresql://jm:s3cr@[::1]:5432/jobs", "[::1]:5432/jobs"),
        ("postgresql:///jobs?host=/run/postgresql", "/jobs"),
    ],
)
def test_a_dsn_is_shown_without_its_secret(dsn, shown):
    config = PostgresConfig(dsn=dsn)
    assert (config.redacted, redacted(dsn)) == (shown, shown)
    assert SECRET not in repr(config)


def test_an_unreachable_server_is_a_finding_that_names_host_and_database_only():
    found = asyncio.run(check_postgres("postgresql://jm:s3cr@127.0.0.1:1/jobs"))
    assert found.where == "127.0.0.1:1/jobs"
    assert SECRET not in repr(found)
    assert found.problem


@pytest.mark.parametrize("settings", [{"connections_max": 0}, {"connect_timeout_s": 0}, {"command_timeout_s": -1.0}])
def test_postgres_settings_have_bounds(settings):
    with pytest.raises(InvalidSettingError, match=next(iter(settings))):
        PostgresConfig(dsn="postgresql://db/jobs", **settings)


def test_a_schema_that_would_need_quoting_is_refused():
    with pytest.raises(InvalidNameError):
        PostgresConfig(dsn="postgresql://db/jobs", schema="a;drop")


@pytest.mark.parametrize(
    "settings",
    [
        {"lease_s": 0},
        {"save_workers": 0},
        {"save_batch_jobs": 0},
        {"record_batch_events": 0},
        {"poll_s": 0.001},
        {"transient_threshold_s": 1.0},
    ],
)
def test_coordinator_settings_have_bounds(settings):
    with pytest.raises(InvalidSettingError, match=next(iter(settings))):
        CoordinatorConfig(**settings)
