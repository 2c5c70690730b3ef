"""The manifests of deploy/kubernetes are what Kubernetes takes, start what ``jm`` has, and fit together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml

from jm_nats.config import NatsConfig
from tests.support.command_lines import parsed, variables
from tests.support.metric_queries import problems

FOLDER: Final = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
VERSIONS: Final = ("1.30", kubernetes_validate.latest_version())
MARGIN_S: Final = 15.0  # docs/deployment.md: what a stop takes besides the drain timeout
NOT_OF_KUBERNETES: Final = {"Kustomization", "ScaledObject"}

Manifest = dict[str, Any]


def documents() -> list[tuple[str, Manifest]]:
    return [(path.name, document) for path in sorted(FOLDER.glob("*.yaml")) for document in _read(path)]


def _read(path: Path) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


ALL: Final = documents()
OWN: Final = [manifest for _, manifest in ALL if manifest["kind"] not in NOT_OF_KUBERNETES]


def named(kind: str) -> dict[str, Manifest]:
    return {manifest["metadata"]["name"]: manifest for manifest in OWN if manifest["kind"] == kind}


WORKLOADS: Final = named("Deployment") | named("Job")
DEPLOYMENTS: Final = named("Deployment")
each_workload = pytest.mark.parametrize("workload", [pytest.param(one, id=name) for name, one in WORKLOADS.items()])
each_deployment = pytest.mark.parametrize("workload", [pytest.param(one, id=name) for name, one in DEPLOYMENTS.items()])


def pod(workload: Manifest) -> Manifest:
    spec: Manifest = workload["spec"]["template"]["spec"]
    return spec


def container(workload: Manifest) -> Manifest:
    (only,) = pod(workload)["containers"]
    return dict(only)


def environment(workload: Manifest) -> dict[str, str]:
    """What the container sees; where the API fills in something, its name."""
    env: dict[str, str] = {}
    for source in container(workload).get("envFrom", []):
        if "configMapRef" in source:
            env |= named("ConfigMap")[source["configMapRef"]["name"]]["data"]
        else:
            env |= named("Secret")[source["secretRef"]["name"]]["stringData"]
    for variable in container(workload).get("env", []):
        if "value" in variable:
            env[variable["name"]] = variable["value"]
        elif "configMapKeyRef" in variable["valueFrom"]:
            key = variable["valueFrom"]["configMapKeyRef"]
            env[variable["name"]] = named("ConfigMap")[key["name"]]["data"][key["key"]]
        else:
            env[variable["name"]] = "of-the-api"
    return env


def parameters(workload: Manifest) -> dict[str, Any]:
    return parsed(container(workload)["args"], environment(workload))


# -- what Kubernetes says


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", [pytest.param(one, id=f"{one['kind']}-{one['metadata']['name']}") for one in OWN])
def test_kubernetes_takes_it(manifest, version):
    kubernetes_validate.validate(manifest, version, strict=True)


def test_a_misspelt_field_is_found():
    wrong = {**named("Deployment")["jobmaster-worker"]}
    wrong["spec"] = {**wrong["spec"], "replica": 3}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_the_kustomization_names_the_files_that_are_there():
    (kustomization,) = _read(FOLDER / "kustomization.yaml")
    there = {name for name, _ in ALL if ".example." not in name} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) - {"secret.yaml"} == there
    assert (FOLDER / "secret.example.yaml").exists()
    (image,) = kustomization["images"]
    assert {container(workload)["image"] for workload in WORKLOADS.values()} == {image["name"]}


# -- what jm says


@each_workload
def test_the_command_line_and_its_settings_are_jms(workload):
    env = environment(workload)
    assert set(env) - {"JM_CLUSTER"} <= variables(container(workload)["args"][0])
    params = parameters(workload)
    assert params.get("cluster", "prod") == "prod"  # a worker's is the one that its application names
    if "JM_NATS_USER" in env:
        config = NatsConfig.from_env(env)
        assert config.inbox_prefix == f"_INBOX_{config.user}"
        mounted = [mount["mountPath"] for mount in container(workload)["volumeMounts"]]
        assert str(Path(str(config.tls_ca_file)).parent) in mounted


def test_a_worker_knows_nothing_of_postgres():
    assert "JM_POSTGRES_DSN" not in environment(DEPLOYMENTS["jobmaster-worker"])


def test_a_coordinator_leaves_the_schema_to_the_job():
    assert parameters(DEPLOYMENTS["jobmaster-coordinator"])["auto_migrate"] is False


def test_a_worker_is_given_its_drain_time_and_more():
    workload = DEPLOYMENTS["jobmaster-worker"]
    assert pod(workload)["terminationGracePeriodSeconds"] >= parameters(workload)["drain_timeout"] + MARGIN_S


@each_deployment
def test_probes_ask_the_port_that_answers_from_outside(workload):
    params, ports = parameters(workload), {port["name"]: port["containerPort"] for port in container(workload)["ports"]}
    assert params["health_host"] == "0.0.0.0"
    assert ports["health"] == params["health_port"]
    paths = {probe: container(workload)[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe")}
    assert set(paths.values()) == {"/livez"}
    assert container(workload)["readinessProbe"]["httpGet"]["path"] == "/readyz"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container(workload)[probe]["httpGet"]["port"] == "health"


@each_deployment
def test_prometheus_asks_the_port_that_answers_from_outside(workload):
    params, ports = parameters(workload), {port["name"]: port["containerPort"] for port in container(workload)["ports"]}
    assert params["prometheus_host"] == "0.0.0.0"
    assert ports["metrics"] == params["prometheus_port"]


# -- how they fit together


@each_deployment
def test_a_deployment_selects_its_own_pods_and_nobody_elses(workload):
    wanted = workload["spec"]["selector"]["matchLabels"]
    selected = [name for name, one in WORKLOADS.items() if selects(wanted, one)]
    assert selected == [workload["metadata"]["name"]]
    budget = named("PodDisruptionBudget")[workload["metadata"]["name"]]
    assert budget["spec"]["selector"]["matchLabels"] == wanted


def test_every_pod_has_a_network_policy_each_way():
    for name, workload in WORKLOADS.items():
        ways = {
            way
            for policy in named("NetworkPolicy").values()
            if selects(policy["spec"]["podSelector"]["matchLabels"], workload)
            for way in policy["spec"]["policyTypes"]
        }
        assert ways == {"Ingress", "Egress"}, name


def selects(labels: dict[str, str], workload: Manifest) -> bool:
    return bool(labels.items() <= workload["spec"]["template"]["metadata"]["labels"].items())


def addresses() -> list[str]:
    of_nats = named("ConfigMap")["jobmaster"]["data"]["JM_NATS_URL"].split(",")
    secrets = [secret["stringData"] for secret in named("Secret").values()]
    return of_nats + [data["JM_POSTGRES_DSN"] for data in secrets if "JM_POSTGRES_DSN" in data]


def test_an_address_says_the_namespace_that_it_is_in():
    """``nats-0.nats`` is looked up in the namespace of the pod that asks, where there is no NATS."""
    hosts = [urlsplit(address).hostname for address in addresses()]
    assert len(hosts) == 5
    assert [host for host in hosts if not host.endswith("_namespace.svc")] == []


@each_workload
def test_jm_is_not_process_1(workload):
    """A signal that comes before Python has set its handler would be dropped."""
    assert pod(workload)["shareProcessNamespace"] is True


def test_the_finished_migration_makes_room_for_the_next_one():
    assert WORKLOADS["jobmaster-migrate"]["spec"]["ttlSecondsAfterFinished"] <= 3600
    delete = "kubectl delete job jobmaster-migrate --namespace jobmaster"
    for page in (FOLDER / "migrate.yaml", FOLDER.parents[1] / "docs" / "deployment.md"):
        assert delete in page.read_text()


def test_whoever_scales_is_told_of_the_fixed_number():
    assert DEPLOYMENTS["jobmaster-worker"]["spec"]["replicas"] == 3
    for name in ("worker.yaml", "keda.example.yaml"):
        assert re.search(r"^ *# *Remove .*(replicas: 3|this line)", (FOLDER / name).read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", ["jobmaster-worker", "jobmaster-coordinator"])
def test_the_commented_rule_for_a_collector_is_one(name):
    """Uncommented it is what Kubernetes takes, and lets through what ``--otlp-endpoint`` needs."""
    text = re.sub(r"^    # (?=- to|  )", "    ", (FOLDER / "network.yaml").read_text(), flags=re.MULTILINE)
    (policy,) = [one for one in yaml.safe_load_all(text) if one["metadata"]["name"] == name]
    kubernetes_validate.validate(policy, VERSIONS[0], strict=True)
    assert {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]} >= {4222, 4318}
    (shipped,) = [one for one in OWN if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == name]
    assert 4318 not in {port["port"] for rule in shipped["spec"]["egress"] for port in rule["ports"]}


@each_workload
def test_a_pod_may_do_little(workload):
    spec, security = pod(workload), container(workload)["securityContext"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert container(workload)["resources"]["requests"].keys() == {"cpu", "memory"}
    assert {mount["name"] for mount in container(workload)["volumeMounts"]} == {v["name"] for v in spec["volumes"]}


def test_no_secret_is_in_the_files():
    for secret in named("Secret").values():
        assert all("CHANGE_ME" in value for value in secret["stringData"].values())
    assert not (FOLDER / "secret.yaml").exists()


def test_workers_are_scaled_by_what_is_measured():
    (scaled,) = _read(FOLDER / "keda.example.yaml")
    assert scaled["spec"]["scaleTargetRef"]["name"] in DEPLOYMENTS
    assert not problems(scaled["spec"]["triggers"][0]["metadata"]["query"])
