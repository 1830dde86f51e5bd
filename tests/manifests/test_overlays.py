"""Every overlay, as rendered by kustomize and as accepted by a real API server with Knative's CRDs."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from functions.app import FUNCTIONS
from localcluster.cluster import LocalCluster
from localcluster.programs import build
from tests.manifests.rendering import (
    INSTALL_DIRS,
    INSTALL_OVERLAYS,
    MANIFESTS,
    MUTEX_OVERLAY,
    OVERLAYS,
    ROOT,
    SECURITY_CONTEXT,
    SKIP_SCHEMA_OPTION,
    Manifest,
    filter_by_kind,
    get_identity,
    get_pod_specs,
    list_changed_objects,
    list_optional_steps,
    render,
    render_overlay,
    render_yaml,
)
from tests.manifests.running_install import RunningInstall, check_drain_and_restore
from tests.proofs import proves
from tests.sources import OPT_IN_STEPS

OVERLAYS_WITH_FUNCTIONS = [name for name in OVERLAYS if name != "func"]
ONE_SERVICE_PER_FUNCTION = ("knative", "plain", "rabbitmq", "kafka", MUTEX_OVERLAY)
OTHER_WORKLOADS = ("podsource", "validate")
"""Workloads other than the functions."""
OVERLAY_NAMESPACES = {"hyperconverged": "kubevirt-hyperconverged", "operator": "node-maintenance-operator"}
DELETED_NAMESPACES = ("node-maintenance", "kubevirt-hyperconverged")


@pytest.fixture(scope="module")
def install_cluster(knative_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Yield that cluster for applying one overlay over another; delete their namespaces and the oldest API at the end.

    The deletion is not awaited, because emptying a namespace takes seconds.
    """
    yield knative_cluster
    delete_options = ("--ignore-not-found", "--wait=false")
    knative_cluster.kubectl("delete", "namespace", *DELETED_NAMESPACES, *delete_options)
    knative_cluster.kubectl("delete", "crd", "nodemaintenances.kubevirt.io", *delete_options)


@pytest.mark.slow
@proves("NMO-24")
@pytest.mark.parametrize("folder", INSTALL_DIRS, ids=lambda folder: folder.name)
def test_a_second_apply_changes_nothing(install_cluster: LocalCluster, folder: Path) -> None:
    """NMO-24: one command installs on a cluster with Knative, and running it again changes nothing.

    The overlay that the README installs is applied with the README's command.
    """
    validation_options = [] if folder.name == "knative" else [SKIP_SCHEMA_OPTION]

    first = install_cluster.kubectl("apply", "-k", folder, *validation_options).stdout.splitlines()
    second = install_cluster.kubectl("apply", "-k", folder, *validation_options).stdout

    assert len(first) == len(second.splitlines()) == len(render(folder))
    # kubectl prints "unchanged" if it sent nothing: the live object, with the server's defaults, is as desired
    assert list_changed_objects(second) == []


@pytest.mark.slow
def test_apply_without_knative_names_missing_kind(cluster: LocalCluster) -> None:
    """NMO-24: without Knative the apply fails and names the missing kind."""
    result = cluster.kubectl("apply", "--dry-run=server", "-k", MANIFESTS, SKIP_SCHEMA_OPTION, check=False)

    assert result.returncode == 1
    assert 'no matches for kind "Trigger" in version "eventing.knative.dev/v1"' in result.stderr
    assert "ensure CRDs are installed first" in result.stderr


@proves("NMO-24")
def test_manifests_directory_is_the_knative_overlay() -> None:
    """NMO-24: `kubectl apply -k manifests` installs the overlay `knative`."""
    assert render_yaml(MANIFESTS) == render_yaml(MANIFESTS / "overlays" / "knative")


@pytest.mark.parametrize("file", sorted(MANIFESTS.rglob("kustomization.yaml")), ids=lambda file: file.parent.name)
def test_replacements_use_exact_names(file: Path) -> None:
    """Check that replacements select names exactly: kustomize before 5.8 does not support regular expressions.

    The kubectl of an older cluster could not render such a directory.
    """
    replacements = (yaml.safe_load(file.read_text()) or {}).get("replacements") or []
    targets = [target for replacement in replacements for target in replacement["targets"]]
    selectors = [choice for target in targets for choice in (target["select"], *target.get("reject", []))]

    names = [choice["name"] for choice in selectors if "name" in choice]
    assert [name for name in names if not re.fullmatch("[a-z0-9.-]+", name)] == []


@pytest.mark.parametrize("name", ["base", *OVERLAYS])
def test_overlay_only_selects_components(name: str) -> None:
    """Check that an overlay is a short selection of components, not a copy of their content."""
    folder = MANIFESTS / "base" if name == "base" else MANIFESTS / "overlays" / name
    file = folder / "kustomization.yaml"

    assert len(file.read_text().splitlines()) <= (35 if name == "operator" else 13)


@pytest.mark.parametrize("name", ONE_SERVICE_PER_FUNCTION)
def test_each_function_runs_under_its_own_account(name: str) -> None:
    """Check that each function runs with its own ServiceAccount, as least privilege requires."""
    pods = get_pod_specs(render_overlay(name))

    served = FUNCTIONS.keys() - (OPT_IN_STEPS - list_optional_steps(name))
    assert set(pods) == {*served, *OTHER_WORKLOADS}
    assert {workload: pod["spec"]["serviceAccountName"] for workload, pod in pods.items()} == {
        workload: workload for workload in pods
    }
    for function in served:
        variables = {item["name"]: item.get("value") for item in pods[function]["spec"]["containers"][0]["env"]}
        assert variables["FUNCTION"] == function


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_pod_is_confined(name: str) -> None:
    """Check that every pod has the restricted security context, requests, limits and the network policy's label."""
    for pod in get_pod_specs(render_overlay(name)).values():
        assert pod["metadata"]["labels"]["app.kubernetes.io/part-of"] == "node-maintenance"
        for container in pod["spec"]["containers"]:
            assert container["securityContext"] == SECURITY_CONTEXT
            assert set(container["resources"]) == {"requests", "limits"}
            assert all(set(container["resources"][kind]) == {"cpu", "memory"} for kind in ("requests", "limits"))


@pytest.mark.parametrize("name", OVERLAYS)
def test_startup_probe_allows_two_minutes(name: str) -> None:
    """Check that a startup probe allows two minutes, since many pods that start on a busy node need that long."""
    for pod in get_pod_specs(render_overlay(name)).values():
        for container in pod["spec"]["containers"]:
            startup, alive = dict(container["startupProbe"]), dict(container["livenessProbe"])
            assert startup.pop("periodSeconds") * startup.pop("failureThreshold") == 120
            assert startup.items() <= alive.items()


@pytest.mark.parametrize("name", OVERLAYS)
def test_podsource_probes_use_its_port(name: str) -> None:
    """Check that PodSource's probes and Prometheus use the port that is set in its environment."""
    (container,) = get_pod_specs(render_overlay(name))["podsource"]["spec"]["containers"]
    environment = {item["name"]: item.get("value") for item in container["env"]}

    assert environment == {"PORT": "8080", "SIGNING_KEY": None}
    assert [port["containerPort"] for port in container["ports"]] == [8080]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": 8080}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 8080}


def test_the_api_server_adds_no_number_to_the_template_of_podsource(knative_cluster: LocalCluster) -> None:
    """Check that the API server adds no default number to PodSource's pod template.

    Otherwise Knative's ContainerSource controller would rewrite its Deployment, and remove the sink that SinkBinding
    set. Its comparison ignores absent strings, lists and pointers, but not numbers
    (`equality.Semantic.DeepDerivative`).
    """
    template = get_pod_specs(render_overlay("plain"))["podsource"]
    spec = {"selector": {"matchLabels": template["metadata"]["labels"]}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "podsource"}, "spec": spec}
    created = knative_cluster.kubectl(
        "create", "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(deployment)
    )

    added = find_numbers(json.loads(created.stdout)["spec"]["template"]) - find_numbers(template)

    assert added == {("spec", "terminationGracePeriodSeconds", 30)}, "a pointer, that one"


def find_numbers(value: object, *path: str) -> set[tuple[str | int, ...]]:
    """Return every number in the object together with its path."""
    if isinstance(value, Mapping):
        return {path_found for key, child in value.items() for path_found in find_numbers(child, *path, key)}
    if isinstance(value, list):
        return {
            path_found for place, child in enumerate(value) for path_found in find_numbers(child, *path, str(place))
        }
    return {(*path, value)} if isinstance(value, int) and not isinstance(value, bool) else set()


@pytest.mark.parametrize("name", OVERLAYS_WITH_FUNCTIONS)
def test_written_directories_are_volumes(name: str) -> None:
    """Check that /tmp, for gunicorn's heartbeat, and the journal's directory are volumes: the root is read-only."""
    for workload, pod in get_pod_specs(render_overlay(name)).items():
        if workload in OTHER_WORKLOADS:
            continue
        container = pod["spec"]["containers"][0]
        mount_paths = {mount["mountPath"] for mount in container["volumeMounts"]}
        journal = [Path(item["value"]) for item in container["env"] if item["name"] == "JOURNAL"]
        assert "/tmp" in mount_paths  # noqa: S108
        assert all(str(file.parent) in mount_paths for file in journal)
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            item["name"] for item in pod["spec"]["volumes"]
        }


def read_thread_count(container: Manifest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of gunicorn threads in this container."""
    monkeypatch.delenv("FUNCTION", raising=False)
    for item in container["env"]:
        if item["name"] == "FUNCTION":
            monkeypatch.setenv("FUNCTION", item["value"])
    return int(runpy.run_path(str(ROOT / "functions" / "gunicorn.conf.py"))["threads"])


@pytest.mark.parametrize("name", [name for name in OVERLAYS_WITH_FUNCTIONS if name != "plain"])
def test_knative_services_are_bounded_and_cluster_local(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that Knative Services have scale bounds, gunicorn's thread count as concurrency, and are cluster-local."""
    services = [item for item in filter_by_kind(render_overlay(name), "Service") if item["apiVersion"] != "v1"]
    for service in services:
        template = service["spec"]["template"]
        annotations = template["metadata"]["annotations"]
        scale_limits = [int(annotations[f"autoscaling.knative.dev/{bound}-scale"]) for bound in ("min", "max")]
        assert 1 <= scale_limits[0] <= scale_limits[1]
        threads = read_thread_count(template["spec"]["containers"][0], monkeypatch)
        assert template["spec"]["containerConcurrency"] == threads
        assert service["metadata"]["labels"]["networking.knative.dev/visibility"] == "cluster-local"


def test_coalescing_functions_have_session_affinity() -> None:
    """Design rule 8: functions that coalesce hints within a process get session affinity, so that one pod gets all.

    The other pod is used while that one is unavailable.
    """
    expected = {name for name, function in FUNCTIONS.items() if function.pass_queue and name not in OPT_IN_STEPS} | {
        "status"
    }
    services = filter_by_kind(render_overlay("plain"), "Service")

    assert {item["metadata"]["name"] for item in services if "sessionAffinity" in item["spec"]} == expected
    assert {item["spec"].get("sessionAffinity", "ClientIP") for item in services} == {"ClientIP"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_journal_has_one_writer(name: str) -> None:
    """Check that `record` has one replica: SQLite's lock does not work across pods with separate disks."""
    recorders = [
        item for item in render_overlay(name) if item["metadata"]["name"] in ("record", "functions") and "spec" in item
    ]
    for recorder in [item for item in recorders if "template" in item["spec"]]:
        annotations = recorder["spec"]["template"]["metadata"].get("annotations", {})
        assert recorder["spec"].get("replicas") == 1 or annotations["autoscaling.knative.dev/max-scale"] == "1"


def test_two_pods_of_record_share_no_volume(tmp_path: Path) -> None:
    """Check that two pods of `record` do not share a volume claim.

    The volume of `journal` is used on one node at a time, so a second pod would never start there.
    """

    def write_overlay(*names: str) -> Path:
        manifests_path = os.path.relpath(MANIFESTS, tmp_path.resolve())
        components = [f"{manifests_path}/components/{name}" for name in names]
        file = {"resources": [f"{manifests_path}/overlays/plain"], "components": components}
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(file))
        return tmp_path

    objects = render(write_overlay("journal", "postgresql"))
    [record] = [item for item in filter_by_kind(objects, "Deployment") if item["metadata"]["name"] == "record"]
    assert record["spec"]["replicas"] == 2
    assert not any("persistentVolumeClaim" in volume for volume in record["spec"]["template"]["spec"]["volumes"])

    command = [str(build.ensure_programs() / "kubectl"), "kustomize", str(write_overlay("postgresql", "journal"))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode
    assert "/spec/replicas" in result.stderr


@pytest.mark.parametrize("name", OVERLAYS_WITH_FUNCTIONS)
def test_every_function_has_the_address_of_record(name: str) -> None:
    """Check that every function knows the address of `record`: its own process, if that serves all functions."""
    record_urls = {
        workload: {item["value"] for item in pod["spec"]["containers"][0].get("env", []) if item["name"] == "RECORD"}
        for workload, pod in get_pod_specs(render_overlay(name)).items()
        if workload not in OTHER_WORKLOADS
    }

    if name in ONE_SERVICE_PER_FUNCTION:
        assert record_urls.pop("record") == set()
        assert record_urls == {workload: {"http://record.node-maintenance.svc/record"} for workload in record_urls}
    else:
        separate = {"renew-certificates"} & record_urls.keys()
        assert all(
            record_urls.pop(workload) == {"http://functions.node-maintenance.svc/record"} for workload in separate
        )
        assert list(record_urls.values()) == [{"http://127.0.0.1:8080/record"}]


@pytest.mark.parametrize("name", OVERLAYS)
def test_functions_with_several_reply_events_are_bound_to_the_broker(name: str) -> None:
    """Check that functions with several response events know the Broker's address.

    A reply contains one event; `resync` and `guard` can emit one for each maintenance.
    """
    objects = render_overlay(name)
    (binding,) = filter_by_kind(objects, "SinkBinding")
    subject, selected_labels = binding["spec"]["subject"], binding["spec"]["subject"]["selector"]["matchLabels"].items()
    workloads = [
        item for item in objects if item["apiVersion"] == subject["apiVersion"] and item["kind"] == subject["kind"]
    ]
    bound_names = {
        item["metadata"]["name"] for item in workloads if selected_labels <= item["metadata"]["labels"].items()
    }

    assert binding["spec"]["sink"]["ref"]["kind"] == "Broker"
    assert subject["namespace"] == binding["metadata"]["namespace"]
    if name in ONE_SERVICE_PER_FUNCTION:
        assert bound_names == {"guard", "resync", *(["resync-runs"] if name == MUTEX_OVERLAY else [])}
    elif name == "func":
        labels = {
            item["key"]: item["value"] for item in yaml.safe_load((ROOT / "func.yaml").read_text())["deploy"]["labels"]
        }
        assert selected_labels <= labels.items()
    else:
        assert len(bound_names) == 1


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_referenced_object_exists(name: str) -> None:
    """Check that each object that a Trigger, source or Broker refers to is in the same overlay and namespace."""
    objects = render_overlay(name)
    existing = {get_identity(item) for item in objects}
    if name == "func":  # func deploys it
        existing.add(
            (
                "serving.knative.dev/v1",
                "Service",
                "node-maintenance",
                yaml.safe_load((ROOT / "func.yaml").read_text())["name"],
            )
        )
    references = [ref for item in objects for ref in find_references(item.get("spec", {}))]

    assert len(references) > 25
    assert {get_identity({**ref, "metadata": ref}) for ref in references} <= existing


def find_references(value: Any) -> Iterator[Manifest]:
    """Yield every `ref` at any depth, and every Broker's `config`."""
    if isinstance(value, list):
        for item in value:
            yield from find_references(item)
    elif isinstance(value, dict):
        for key, child in value.items():
            if key in ("ref", "config") and "kind" in child:
                yield child
            else:
                yield from find_references(child)


@pytest.mark.parametrize("name", OVERLAYS)
def test_objects_are_unique_and_in_the_install_namespace(name: str) -> None:
    """Check that no object occurs twice, and that all but a few RBAC objects are in the install's namespace.

    The roles for Leases, node Events and Jobs are in fixed namespaces.
    """
    identities = [get_identity(item) for item in render_overlay(name)]
    home = OVERLAY_NAMESPACES.get(name, "node-maintenance")

    assert len(set(identities)) == len(identities)
    other_namespaces = [(kind, namespace) for _, kind, namespace, _ in identities if namespace not in ("", home)]
    assert all(kind in ("Role", "RoleBinding") for kind, _ in other_namespaces)
    jobs = {"node-upgrade-mutex-operator"} if name == MUTEX_OVERLAY else set()
    assert {namespace for _, namespace in other_namespaces} <= {"default", "medik8s-leases", *jobs}


@pytest.mark.parametrize(
    ("name", "broker_class", "config"),
    [
        ("knative", "MTChannelBasedBroker", "ConfigMap"),
        ("rabbitmq", "RabbitMQBroker", "RabbitmqBrokerConfig"),
        ("kafka", "Kafka", "ConfigMap"),
    ],
)
def test_overlay_sets_the_broker_class(name: str, broker_class: str, config: str) -> None:
    """Check that the overlay sets the Broker's class, instead of leaving it to the cluster's default."""
    (broker,) = filter_by_kind(render_overlay(name), "Broker")

    assert broker["metadata"]["annotations"]["eventing.knative.dev/broker.class"] == broker_class
    assert broker["spec"]["config"]["kind"] == config


@pytest.mark.parametrize("name", [name for name in OVERLAYS if name not in ("rabbitmq", "kafka")])
def test_in_memory_channel_delivers_asynchronously(name: str) -> None:
    """Check that the in-memory channel delivers asynchronously; otherwise it would serialize 20 drains.

    The Broker copies its annotation to the channel.
    """
    (broker,) = filter_by_kind(render_overlay(name), "Broker")

    assert broker["metadata"]["annotations"]["messaging.knative.dev/async-handler"] == "true"


@pytest.mark.parametrize(
    ("name", "annotations"),
    [
        ("rabbitmq", {"rabbitmq.eventing.knative.dev/parallelism": "20"}),
        ("kafka", {"kafka.eventing.knative.dev/delivery.order": "ordered"}),
    ],
)
def test_every_trigger_has_delivery_annotations(name: str, annotations: dict[str, str]) -> None:
    """Check that Triggers set the delivery of RabbitMQ (parallel) and Kafka (ordered by partition key)."""
    for trigger in filter_by_kind(render_overlay(name), "Trigger"):
        assert trigger["metadata"]["annotations"] == annotations


def test_rabbitmq_keeps_events_in_quorum_queues() -> None:
    """Check that RabbitMQ uses quorum queues, which survive the loss of one of its nodes."""
    (config,) = filter_by_kind(render_overlay("rabbitmq"), "RabbitmqBrokerConfig")

    assert config["spec"]["queueType"] == "quorum"


TICK_DRIVEN_FUNCTIONS = ("resync", "resync-runs", "renew-certificates", "migrate", "protect", "label-cpu")
DELIVERY_POLICIES = {
    "record": (40, "linear", "PT1S", "PT10S"),
    **dict.fromkeys(TICK_DRIVEN_FUNCTIONS, (2, "exponential", "PT0.5S", "PT4S")),
}
"""Function → retry, backoff policy, backoff delay and timeout, if they differ; none has a dead letter sink."""


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_trigger_has_a_delivery_policy(name: str) -> None:
    """Check that each Trigger sets retries, backoff and timeout, and the dead letter sink unless the tick replaces it.

    The delivery of a tick ends before the next one. `record` gets more retries, with short delays so that they succeed
    soon after its database is back. RabbitMQ closes the channel of an event after half an hour (`consumer_timeout`).
    With a timeout at each attempt, all retries take 20 minutes.
    """
    for trigger in filter_by_kind(render_overlay(name), "Trigger"):
        delivery = trigger["spec"]["delivery"]
        name = trigger["metadata"]["labels"]["nodemaintenance.dev/function"]
        retry_policy = (delivery["retry"], delivery["backoffPolicy"], delivery["backoffDelay"], delivery["timeout"])
        assert retry_policy == DELIVERY_POLICIES.get(name, (10, "exponential", "PT0.2S", "PT10S"))
        assert delivery.get("deadLetterSink", {}).get("uri") == (None if name in DELIVERY_POLICIES else "/record")


@pytest.mark.parametrize("name", INSTALL_OVERLAYS)
def test_network_policies_admit_broker_and_serving_only(name: str) -> None:
    """Check that network policies deny incoming traffic to the product's pods, except from the Broker and Serving.

    Without Serving, the functions reach `record` directly. RabbitMQ's ingress runs in the product's namespace and
    accepts events from its sources and functions.
    """
    policies = {
        item["metadata"]["name"]: item["spec"] for item in filter_by_kind(render_overlay(name), "NetworkPolicy")
    }
    to_admission = policies.pop("to-admission", None)  # the API server's address is unknown
    if to_admission:
        assert to_admission["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8443}]}]
    ingress_peers = [
        peer for policy in policies.values() for rule in policy.get("ingress", []) for peer in rule["from"]
    ]

    internal_policies = {"from-functions"} if name == "plain" else {"from-serving"}
    broker = f"from-{name if name in ('rabbitmq', 'kafka') else 'inmemory'}"
    assert set(policies) == {"closed", broker} | internal_policies | ({"to-broker"} if name == "rabbitmq" else set())
    assert policies["closed"] == {
        "podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "node-maintenance"}},
        "policyTypes": ["Ingress"],
    }
    assert all(rule["ports"] for policy in policies.values() for rule in policy.get("ingress", []))
    assert all(peer.keys() <= {"namespaceSelector", "podSelector"} and peer for peer in ingress_peers)


@pytest.mark.slow
@proves("DRN-15", "DRN-15a", "X-7")
def test_hyperconverged_install_drains_with_oldest_api(install_cluster: LocalCluster, tmp_path: Path) -> None:
    """Check that the overlay `hyperconverged` serves and watches the oldest API.

    A complete maintenance runs with the accounts of its namespace.
    """
    objects = render_overlay("hyperconverged")
    sources = filter_by_kind(objects, "ApiServerSource")
    watched = {
        kind["apiVersion"]: get_identity(source)[2] for source in sources for kind in source["spec"]["resources"]
    }
    install_cluster.kubectl("apply", SKIP_SCHEMA_OPTION, "-k", MANIFESTS / "overlays" / "hyperconverged")

    with RunningInstall(install_cluster, objects, tmp_path):
        check_drain_and_restore(install_cluster)

    assert watched["kubevirt.io/v1alpha1"] == "kubevirt-hyperconverged"
