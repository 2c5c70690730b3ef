"""The units of deploy/systemd start commands and set variables that exist, and wait for as long as a stop takes."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from jm_cli.exits import ExitCode
from jm_cli.service_manager import POLL_S, START_MORE_S
from jm_nats.config import NatsConfig
from tests.support.command_lines import parsed, variables

FOLDER: Final = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
UNITS: Final = ("jm-coordinator.service", "jm-worker@.service")
INSTANCE: Final = "1"  # of which there is an example
MARGIN_S: Final = 15.0  # docs/deployment.md: what a stop takes besides the drain timeout
SECRETS: Final = ("PASSWORD", "DSN")


def unit(name: str) -> dict[str, list[str]]:
    """Values by key, in the order of the file; sections do not matter, no key is in two of them."""
    found: dict[str, list[str]] = {}
    for line in (FOLDER / name).read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value.replace("%i", INSTANCE))
    return found


def environment(name: str) -> dict[str, str]:
    """What the unit sets, and the example of its file."""
    of_unit = unit(name)
    env = dict(word.split("=", 1) for line in of_unit.get("Environment", []) for word in shlex.split(line))
    for path in of_unit["EnvironmentFile"]:
        example = FOLDER / f"{Path(path).name}.example"
        lines = [line for line in example.read_text().splitlines() if line and not line.startswith("#")]
        env |= dict(line.split("=", 1) for line in lines)
    return env


def seconds(text: str) -> float:
    (number,) = re.fullmatch(r"(\d+)s", text).groups()
    return float(number)


@pytest.mark.parametrize("name", UNITS)
def test_the_command_line_and_its_settings_are_jms(name):
    (command,) = unit(name)["ExecStart"]
    program, *arguments = shlex.split(command)
    env = environment(name)
    assert Path(program).name == "jm"
    assert set(env) <= variables(arguments[0])
    params = parsed(arguments, env)
    assert params.get("cluster", "prod") == "prod"  # a worker's is the one that its application names
    assert params["prometheus_port"]
    assert params["health_port"] is None, "nobody asks: a process that has failed must end, so that it is started again"
    config = NatsConfig.from_env(env)
    assert config.inbox_prefix == f"_INBOX_{config.user}"


def test_a_worker_is_given_its_drain_time_and_more():
    of_unit = unit("jm-worker@.service")
    (command,) = of_unit["ExecStart"]
    params = parsed(shlex.split(command)[1:], environment("jm-worker@.service"))
    (stop,) = of_unit["TimeoutStopSec"]
    assert seconds(stop) >= params["drain_timeout"] + MARGIN_S
    assert params["processes"] == 1, "a supervisor of processes would drain them one above the other"


@pytest.mark.parametrize("name", UNITS)
def test_a_stop_is_asked_for_and_reaches_the_process_first(name):
    of_unit = unit(name)
    assert of_unit["KillSignal"] == ["SIGTERM"]
    assert of_unit["KillMode"] == ["mixed"], "a handler's process must not be told before its worker is"
    assert seconds(of_unit["TimeoutStopSec"][0]) >= MARGIN_S


@pytest.mark.parametrize("name", UNITS)
def test_what_would_end_the_same_way_is_not_tried_again(name):
    of_unit = unit(name)
    assert of_unit["Restart"][0] in ("always", "on-failure")
    assert [int(code) for code in of_unit["RestartPreventExitStatus"]] == [ExitCode.USAGE]
    assert of_unit["StartLimitIntervalSec"] == ["0"], "an outage of NATS may last longer than five starts"


@pytest.mark.parametrize("name", UNITS)
def test_one_that_hangs_is_started_again(name):
    of_unit = unit(name)
    assert of_unit["Type"] == ["notify"]
    assert of_unit["NotifyAccess"] == ["main"]
    assert seconds(of_unit["WatchdogSec"][0]) > 3 * POLL_S, "it tells once in a third of the time, or once a poll"
    assert seconds(of_unit["TimeoutStartSec"][0]) >= START_MORE_S, "the first request for more time must come within it"


def test_a_worker_may_have_any_name():
    """``jm-worker@12``, ``jm-worker@mail``: nothing is a number that has the name for a part."""
    text = (FOLDER / "jm-worker@.service").read_text()
    settings = [line for line in text.splitlines() if "%i" in line and not line.startswith("#")]
    assert settings == ["Description=JobMaster worker %i", "EnvironmentFile=-/etc/jobmaster/worker-%i.env"]


@pytest.mark.parametrize("name", UNITS)
def test_the_service_may_do_little(name):
    of_unit = unit(name)
    for key, value in {
        "DynamicUser": "yes", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes",
        "PrivateTmp": "yes", "CapabilityBoundingSet": "",
    }.items():  # fmt: skip
        assert of_unit[key] == [value]
    assert "MemoryMax" in of_unit


@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in sorted(FOLDER.glob("*"))])
def test_no_secret_is_in_the_files(path):
    for line in path.read_text().splitlines():
        if any(word in line.partition("=")[0] for word in SECRETS):
            assert "CHANGE_ME" in line, line


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_agrees(tmp_path):
    """With a program that is there: it looks for that as well."""
    for name in UNITS:
        text = (FOLDER / name).read_text().replace("/opt/jobmaster/bin/jm ", f"{sys.executable} -m jm_cli ")
        (tmp_path / name.replace("@", f"@{INSTANCE}")).write_text(text)
        (tmp_path / name).write_text(text)
    verified = [str(tmp_path / name.replace("@", f"@{INSTANCE}")) for name in UNITS]
    done = subprocess.run(["systemd-analyze", "verify", *verified], capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if "jm-" in line]
    assert (done.returncode, ours) == (0, [])


@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        (["coordinatr"], {}),
        (["worker", "a:b", "--prometeus-port", "1"], {}),
        (["worker", "a:b"], {"JM_WORKER_SLOTS": "x"}),
    ],
)
def test_what_jm_does_not_have_is_found(arguments, env):
    with pytest.raises(Exception, match=r"coordinatr|No such option|a valid integer"):
        parsed(arguments, env)
