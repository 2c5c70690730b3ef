"""compose.yaml, the Dockerfile and deploy/compose, as far as they can be judged without Docker."""

from __future__ import annotations

import ast
import re
import subprocess
from typing import TYPE_CHECKING, Any, Final

import pytest

from jm_core import limits
from jm_nats.embedded import find_nats_server
from tests.support import compose_file
from tests.support.compose_file import NATS_CONFIG, ROOT, nats_environment, seconds, with_defaults

if TYPE_CHECKING:
    from pathlib import Path

FILE: Final = compose_file.load()
SERVICES: Final[dict[str, dict[str, Any]]] = FILE["services"]
NODES: Final = [name for name in SERVICES if name.startswith("nats-")]
STAYING: Final = [*NODES, "postgres", "coordinator", "worker"]
ONCE: Final = ["migrate", "jm"]
OURS: Final = ["coordinator", "worker", *ONCE]
MARGIN_S: Final = 5.0  # to report what ran, after the drain
# Of compose files: what docker-compose 1.29.2 does not know, by place.
NOT_IN_1_29: Final = {"name", "include", "models"}
NOT_IN_1_29_SERVICE: Final = {"develop", "attach", "annotations", "uts", "gpus", "post_start", "pre_stop", "provider"}
NOT_IN_1_29_HEALTH: Final = {"start_interval"}


def environment(service: str) -> dict[str, str]:
    return {name: with_defaults(str(value)) for name, value in SERVICES[service].get("environment", {}).items()}


def test_the_services_are_those_of_a_cluster() -> None:
    assert sorted(SERVICES) == sorted(STAYING + ONCE)
    assert len(NODES) == 3
    assert SERVICES["coordinator"]["deploy"]["replicas"] == 2
    assert SERVICES["worker"]["deploy"]["replicas"] == 3


def test_docker_compose_1_29_knows_all_that_is_used() -> None:
    assert not set(FILE) & NOT_IN_1_29
    for name, service in SERVICES.items():
        assert not set(service) & NOT_IN_1_29_SERVICE, name
        assert not set(service.get("healthcheck", {})) & NOT_IN_1_29_HEALTH, name
        for condition in service.get("depends_on", {}).values():
            assert set(condition) == {"condition"}, name


@pytest.mark.parametrize("service", STAYING)
def test_what_stays_has_a_health_check_and_is_restarted(service: str) -> None:
    check = SERVICES[service]["healthcheck"]
    assert check["test"][0] == "CMD"  # no shell: it would be needed in the image
    assert seconds(check["timeout"]) <= seconds(check["interval"])
    assert SERVICES[service]["restart"] == "unless-stopped"


@pytest.mark.parametrize("service", ONCE)
def test_what_ends_is_not_restarted(service: str) -> None:
    assert SERVICES[service]["restart"] == "no"
    assert SERVICES[service]["healthcheck"] == {"disable": True}


@pytest.mark.parametrize("service", ["coordinator", "worker"])
def test_our_health_check_is_a_program_that_asks_the_port_which_is_served(service: str) -> None:
    *interpreter, program = SERVICES[service]["healthcheck"]["test"][1:]
    assert interpreter == ["python", "-IS", "-c"]
    ast.parse(program)
    assert f'127.0.0.1", {environment(service)["JM_HEALTH_PORT"]}' in program
    assert "exit(" not in program.replace("sys.exit(", "")  # -S: the built-in one is not there


def test_a_stop_waits_longer_than_a_worker_drains() -> None:
    drain_s = float(environment("worker")["JM_WORKER_DRAIN_TIMEOUT_S"])
    assert drain_s >= limits.DRAIN_TIMEOUT_S
    assert seconds(SERVICES["worker"]["stop_grace_period"]) >= drain_s + MARGIN_S


@pytest.mark.parametrize("service", OURS)
def test_a_signal_before_there_is_a_handler_is_not_lost(service: str) -> None:
    assert SERVICES[service]["init"] is True  # process 1 would not get it


def test_each_waits_for_what_it_needs() -> None:
    healthy, done = "service_healthy", "service_completed_successfully"
    wanted = dict.fromkeys([*NODES, "postgres"], healthy) | {"migrate": done}
    assert {name: how["condition"] for name, how in SERVICES["coordinator"]["depends_on"].items()} == wanted
    assert SERVICES["worker"]["depends_on"] == {"coordinator": {"condition": healthy}}
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": healthy}}


def test_ports_are_published_on_loopback_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 4
    for port in ports:
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", with_defaults(port)), port


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_images_have_a_version_and_can_be_replaced(service: str) -> None:
    given = SERVICES[service]["image"]
    assert re.fullmatch(r"\$\{[A-Z]+_IMAGE:-[a-z]+:[\w.-]+\}", given), given
    assert not with_defaults(given).endswith("latest")


def test_the_image_is_built_once_and_from_a_base_that_can_be_replaced() -> None:
    assert [name for name, service in SERVICES.items() if "build" in service] == ["migrate"]
    default = with_defaults(SERVICES["migrate"]["build"]["args"]["PYTHON_IMAGE"])
    assert f"ARG PYTHON_IMAGE={default}\n" in (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize("service", OURS)
def test_every_setting_of_ours_is_documented(service: str) -> None:
    known = set(re.findall(r"`(JM_\w+)`", (ROOT / "docs" / "configuration.md").read_text()))
    given = {name for name in environment(service) if name.startswith("JM_")}
    assert given
    assert not given - known


def test_replicas_are_as_many_as_there_are_nodes() -> None:
    assert environment("coordinator")["JM_NATS_REPLICAS"] == str(len(NODES))
    assert environment("worker")["JM_NATS_REPLICAS"] == str(len(NODES))
    hosts = re.findall(r"nats://([\w-]+):4222", environment("worker")["JM_NATS_URL"])
    assert hosts == NODES


def test_a_worker_can_not_reach_postgres() -> None:
    assert set(SERVICES["postgres"]["networks"]).isdisjoint(SERVICES["worker"]["networks"])
    assert not {"JM_POSTGRES_DSN", "PGPASSWORD"} & set(environment("worker"))


@pytest.mark.parametrize("service", [*NODES, *OURS])
def test_no_process_has_rights_that_it_does_not_need(service: str) -> None:
    found = SERVICES[service]
    assert found["read_only"] is True
    assert found["cap_drop"] == ["ALL"]
    assert found["security_opt"] == ["no-new-privileges:true"]


def test_the_passwords_are_variables_and_no_dsn_has_one() -> None:
    secrets = {name for name in compose_file.variables() if "PASSWORD" in name}
    assert secrets == {"NATS_PASSWORD", "POSTGRES_PASSWORD"}
    assert "@" in environment("coordinator")["JM_POSTGRES_DSN"]
    assert ":" not in environment("coordinator")["JM_POSTGRES_DSN"].split("//")[1].split("@")[0]


def test_data_outlive_their_containers() -> None:
    assert set(FILE["volumes"]) == {*NODES, "postgres"}
    for name in FILE["volumes"]:
        assert any(mount.startswith(f"{name}:/") for mount in SERVICES[name]["volumes"])


def test_the_example_of_the_environment_has_every_variable_with_its_default() -> None:
    example = (ROOT / "deploy" / "compose" / "env.example").read_text()
    written = dict(re.findall(r"^#?(\w+)=(.*)$", example, re.MULTILINE))
    assert written == {name: default or "" for name, default in compose_file.variables().items()}


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("password", ["only-for-trying-out", "12345", "1e5", "pass # word", "a;b"])
def test_the_nats_configuration_is_one_with_any_password(node: str, password: str, tmp_path: Path) -> None:
    environ = nats_environment(node, password)
    assert environ["NATS_SERVER_NAME"] == node
    done = check_nats(NATS_CONFIG, environ, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_password_without_quotes_would_not_do(tmp_path: Path) -> None:
    """Why compose.yaml has them: NATS reads a variable as it reads its file, where 12345 is a number."""
    environ = nats_environment(NODES[0]) | {"NATS_PASSWORD": "12345"}
    assert check_nats(NATS_CONFIG, environ, tmp_path).returncode != 0


def test_nats_syncs_before_it_acknowledges_and_is_one_cluster() -> None:
    text = NATS_CONFIG.read_text()
    assert re.search(r"^\s*sync_interval: always$", text, re.MULTILINE)
    assert re.findall(r'"nats://([\w-]+):6222"', text) == NODES


def test_the_image_has_a_number_for_a_user_and_no_shell_before_the_program() -> None:
    last_stage = (ROOT / "Dockerfile").read_text().rsplit("\nFROM ", 1)[1]
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", last_stage, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["jm"\]$', last_stage, re.MULTILINE)
    assert not re.search(r"^RUN ", last_stage, re.MULTILINE)  # nothing is installed in it


def test_the_context_of_the_build_holds_the_packages_and_nothing_of_this_machine() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignore
    allowed = {line[1:] for line in ignore if line.startswith("!")}
    assert allowed >= {"pyproject.toml", "jm_core", "jm_nats", "jm_master", "cli/jm_cli"}
    assert all((ROOT / name).exists() for name in allowed)
    assert not allowed & {".git", ".env", ".jm"}


def check_nats(config: Path, environ: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(find_nats_server()), "-t", "-c", str(config)]
    return subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=20, check=False)
