"""Where telemetry is to go: what is refused, what each process of several gets, and who speaks first."""

from __future__ import annotations

import pytest

from jm_cli import redaction, telemetry
from jm_cli.exits import UsageError
from jm_cli.redaction import learn_headers, redact
from jm_cli.telemetry import Identity, wanted
from jm_cli.telemetry_options import TelemetryOptions


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """No variable of OpenTelemetry's, and no secret that another test has learnt."""
    for name in list(telemetry.os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(redaction, "_secrets", set())


@pytest.mark.parametrize(
    ("base", "traces"),
    [
        ("http://h:4318", "http://h:4318/v1/traces"),
        ("https://h/", "https://h/v1/traces"),
        ("http://h/otlp/?key=a", "http://h/otlp/v1/traces?key=a"),
        ("http://u:p@[::1]:4318", "http://u:p@[::1]:4318/v1/traces"),
    ],
)
def test_a_signal_goes_below_the_base_url(base, traces):
    assert TelemetryOptions(otlp_endpoint=base).endpoint_of("traces") == traces


@pytest.mark.parametrize(
    "url", ["h:4318", "http://", "ftp://h", "http://h:x", "http://h:99999", "http://[::1", "http://h h", "http://h\n"]
)
def test_what_is_no_url_is_refused_without_showing_it(url):
    with pytest.raises(UsageError) as refused:
        TelemetryOptions(otlp_endpoint=url)
    assert url == "http://" or url not in str(refused.value)


def test_each_process_of_several_gets_the_next_port():
    options = TelemetryOptions(prometheus_port=9464, otlp_endpoint="http://h:4318", prometheus_host="0.0.0.0")
    assert [options.nth(number).prometheus_port for number in (1, 2, 3)] == [9464, 9465, 9466]
    assert options.nth(2).variables() == {
        "JM_OTLP_ENDPOINT": "http://h:4318",
        "JM_PROMETHEUS_PORT": "9465",
        "JM_PROMETHEUS_HOST": "0.0.0.0",
    }
    assert TelemetryOptions(prometheus_port=0).nth(5).prometheus_port == 0
    assert TelemetryOptions().nth(5).prometheus_port is None
    assert "JM_PROMETHEUS_PORT" not in TelemetryOptions().variables()


def test_ports_that_do_not_exist_are_refused():
    TelemetryOptions(prometheus_port=65_535).check_room(1)
    with pytest.raises(UsageError, match="up to 65536, the limit is 65535"):
        TelemetryOptions(prometheus_port=65_535).check_room(2)


@pytest.mark.parametrize(
    ("options", "variables", "traces", "metrics"),
    [
        ({}, {}, None, None),
        ({}, {"OTEL_SERVICE_NAME": "x"}, "OTLPSpanExporter", "OTLPMetricExporter"),
        ({}, {"OTEL_TRACES_EXPORTER": "console"}, "ConsoleSpanExporter", "OTLPMetricExporter"),
        ({"otlp_endpoint": "http://h:1"}, {"OTEL_TRACES_EXPORTER": "none"}, None, "OTLPMetricExporter"),
        (
            {"otlp_endpoint": "http://h:1"},
            {"OTEL_TRACES_EXPORTER": "console"},
            "OTLPSpanExporter",
            "OTLPMetricExporter",
        ),
        ({"otlp_endpoint": "http://h:1"}, {"OTEL_SDK_DISABLED": "TRUE"}, None, None),
        ({"prometheus_port": 0}, {"OTEL_RESOURCE_ATTRIBUTES": "a=b"}, None, None),
        ({"prometheus_port": 0}, {"OTEL_TRACES_EXPORTER": "otlp"}, "OTLPSpanExporter", "OTLPMetricExporter"),
    ],
    ids=repr,
)
def test_who_speaks_first_about_the_exporters(monkeypatch, options, variables, traces, metrics):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    told = TelemetryOptions(**options)
    names = []
    for signal in ("traces", "metrics"):
        exporter = telemetry._exporter(signal, f"OTEL_{signal.upper()}_EXPORTER", told) if wanted(told) else None
        names.append(type(exporter).__name__ if exporter else None)
        if exporter is not None:
            exporter.shutdown()
    assert names == [traces, metrics]


def test_the_endpoint_of_the_flag_comes_before_those_of_the_variables(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://other:1/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    told = TelemetryOptions(otlp_endpoint="http://mine:2")
    exporter = telemetry._exporter("traces", "OTEL_TRACES_EXPORTER", told)
    assert exporter._endpoint == "http://mine:2/v1/traces"


def test_several_workers_of_a_process_are_named_together():
    several = Identity("worker", ["w-a", "w-b"], ["shop", "mail", "shop"]).attributes()
    assert several["service.instance.id"] == "w-a,w-b"
    assert several["jobmaster.cluster"] == "mail,shop"


def test_credentials_of_a_collector_are_known_as_secrets(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x=1,authorization=Bearer%20sesame-h")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:sesame-v@h:1")
    TelemetryOptions(otlp_endpoint="http://sesame-u:sesame-p@h:1/?token=sesame-q&a=b")
    learn_headers(None)
    shown = redact("Bearer sesame-h; sesame-v sesame-p sesame-q token=sesame-q http://sesame-u:x@h")
    assert "sesame" not in shown
