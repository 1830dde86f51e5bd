"""Tests that the statements in docs/ about the manifests are true."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.events import REFERENCE_TYPES, shorten_type
from eventing.journal.store import Journal
from functions.app import FUNCTIONS
from kube.cpu_labels import capabilities, node_patch
from kube.mutex.objects import DEFAULT_NAMESPACE, FINALIZER, RUN_LABEL
from kube.virtualization import virt_launcher_budgets
from localcluster.deploy.preflight import PLACEHOLDER_IMAGE, list_objects_with_placeholder_image
from tests.manifests import trigger_checks
from tests.manifests.documented_commands import read_commands
from tests.manifests.rendering import (
    INSTALL_OVERLAYS,
    MANIFESTS,
    OVERLAYS,
    ROOT,
    Manifest,
    filter_by_kind,
    render,
    render_overlay,
    render_yaml,
)
from tests.proofs import proves
from tests.sources import OPT_IN_STEPS, list_steps

INSTALL_PAGE = (ROOT / "docs/install.md").read_text()
UNINSTALL_PAGE = (ROOT / "docs/uninstall.md").read_text()
CONFIGURATION_PAGE = (ROOT / "docs/configuration.md").read_text()
CONSOLE_PAGE = (ROOT / "docs/console.md").read_text()
SIZING_PAGE = (ROOT / "docs/sizing.md").read_text()
OBSERVABILITY_PAGE = (ROOT / "docs/observability.md").read_text()
EVENTS_PAGE = (ROOT / "docs/events.md").read_text()
MUTEX_PAGE = (ROOT / "docs/mutex.md").read_text()
CPU_LABELS_PAGE = (ROOT / "docs/cpu-labels.md").read_text()


def parse_table(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading, without the table's header row."""
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [row.strip("|").split("|") for row in section.splitlines() if row.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def list_images(objects: list[Manifest]) -> set[str]:
    workloads = [workload for workload in objects if "template" in workload.get("spec", {})]
    return {
        container["image"] for workload in workloads for container in workload["spec"]["template"]["spec"]["containers"]
    }


def test_uninstall_commands_are_in_required_order() -> None:
    """Check that the uninstall commands remove the product's changes to other objects in the right order.

    Optional components leave labels on other objects, and finalizers that block the deletion of CRDs. The functions
    that remove these labels and finalizers must still run. The oldest API's CRD, which is in no overlay, is removed
    after its objects.
    """
    commands = read_commands("uninstall.md", "Remove the product without make")
    positions = {word: position for position, command in enumerate(commands) for word in command.split()}

    assert max(positions["nodemaintenances.nodemaintenance.medik8s.io"], positions["mutexrunconfigs"]) < positions["-k"]
    assert positions["nodemaintenances.kubevirt.io"] < positions["manifests/v1alpha1"] < positions["mine"]
    assert (
        positions[capabilities.CAPABILITIES_LABEL]
        < positions[node_patch.MANAGED_LABEL]
        < positions["-k"]
        < positions[virt_launcher_budgets.VMI_UID_LABEL]
    )
    assert positions[RUN_LABEL] > positions["-k"]
    assert any(f"-n {DEFAULT_NAMESPACE} -l {RUN_LABEL}" in command for command in commands)
    assert FINALIZER in UNINSTALL_PAGE


def test_install_page_lists_every_overlay() -> None:
    """NMO-24: docs/install.md lists exactly the existing overlays."""
    assert {row[0].strip("`") for row in parse_table(INSTALL_PAGE, "Choose an overlay")} == set(INSTALL_OVERLAYS)


def render_documented_overlay(directory: Path, name: str, page: str = INSTALL_PAGE) -> list[Manifest]:
    """Render the overlay on a documentation page whose base is this overlay or component."""
    (overlay_source,) = [
        source for source in re.findall(r"<<END\n(.*?)\nEND\n", page, re.DOTALL) if f"/{name}]" in source
    ]
    relative = f"{'../' * len(directory.parts[1:])}{MANIFESTS.relative_to('/')}"
    (directory / "kustomization.yaml").write_text(overlay_source.replace("../manifests", relative))
    return render(directory)


def test_documented_overlay_replaces_every_image(tmp_path: Path) -> None:
    """Check that the overlay in docs/install.md replaces the image of all functions, the console and PodSource."""
    objects = render_documented_overlay(tmp_path, "knative")

    assert list_images(render_overlay("knative")) == {PLACEHOLDER_IMAGE}
    assert list_images(objects) == {"registry.example/nodemaintenance:v0.1.0"}
    assert len(objects) > len(render_overlay("knative"))


def test_every_documented_overlay_sets_an_image() -> None:
    """Check that every overlay in docs/ sets an image, without which `make deploy` fails."""
    pages = [page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))]
    kustomizations = re.findall(
        r"^kind: Kustomization\n(.*?)\n(?:END|```)$", "\n".join(pages), re.DOTALL | re.MULTILINE
    )

    assert len(kustomizations) >= 5
    assert [
        kustomization
        for kustomization in kustomizations
        if f"images: [{{name: {PLACEHOLDER_IMAGE}, newName:" not in kustomization
    ] == []


CHECKED_PAGES = (
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "config/samples").iterdir()),
    ROOT / "README.md",
)


def test_no_page_refers_to_requirement_documents() -> None:
    """Check that no page refers to requirement documents, which its readers do not have.

    Only docs/requirements.md may refer to them.
    """
    pattern = r"\b(?:document 00\d|(?:the|its) document\b)"
    references = {
        str(page.relative_to(ROOT)): re.findall(pattern, page.read_text(), re.IGNORECASE)
        for page in CHECKED_PAGES
        if page.name != "requirements.md"
    }

    assert references
    assert {page: found for page, found in references.items() if found} == {}


JOURNAL_WORKLOADS = {
    "knative": ("Deployment", "record"),
    "plain": ("Deployment", "record"),
    "compact": ("Service", "functions"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "workload_name"),
    [(name, *workload) for name, workload in JOURNAL_WORKLOADS.items()],
    ids=JOURNAL_WORKLOADS,
)
def test_documented_command_reads_journal(name: str, kind: str, workload_name: str, tmp_path: Path) -> None:
    """Check that the command in docs/observability.md reads the journal with its pod's environment variables."""
    (program,) = re.findall(r"kubectl exec -n node-maintenance \$pod -- python (.*) > ", OBSERVABILITY_PAGE)
    (pod,) = [
        workload["spec"]["template"]["spec"]["containers"][0]
        for workload in filter_by_kind(render_overlay(name), kind)
        if workload["metadata"]["name"] == workload_name and "template" in workload["spec"]
    ]
    (journal,) = [variable["value"] for variable in pod["env"] if variable["name"] == "JOURNAL"]
    with closing(Journal(tmp_path / Path(journal).name)) as store:
        store.write_event(CloudEvent({"id": "tick", "source": "/ping", "type": events.TICK}, {}))

    command = [sys.executable, *program.split()]
    variables = {"JOURNAL": str(tmp_path / Path(journal).name)}
    result = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60, check=True)

    assert json.loads(result.stdout)["id"] == "tick"


def test_install_page_starts_with_make_deploy() -> None:
    """NMO-26a: docs/install.md starts with `make deploy`; `kubectl apply` could replace another install's bindings."""
    commands = read_commands("install.md", "Install the product")

    assert "make deploy" in commands
    assert not any(command.startswith("kubectl apply") for command in commands)


def test_overlay_has_placeholder_image() -> None:
    """Check that overlays contain a placeholder image, so that `make deploy` rejects them without a real image."""
    assert OVERLAYS
    assert {name for name in OVERLAYS if not list_objects_with_placeholder_image(render_overlay(name))} == set()


def test_documented_console_overlay_configures_proxy(tmp_path: Path) -> None:
    """Check that the overlay in docs/console.md sets the proxy's secret and addresses, and the public host name."""
    deployments = filter_by_kind(render_documented_overlay(tmp_path, "proxied", CONSOLE_PAGE), "Deployment")
    (console,) = [deployment for deployment in deployments if deployment["metadata"]["name"] == "console"]

    container = console["spec"]["template"]["spec"]["containers"][0]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables["CONSOLE_PROXIES"] == "10.0.0.0/8"
    assert variables["CONSOLE_HOSTS"] == "console.example"
    assert variables["CONSOLE_PROXY_SECRET"] == "/etc/console-proxy/secret"  # noqa: S105 - a path


@pytest.mark.slow
@pytest.mark.parametrize(
    "components",
    [
        ("services", "kafka"),
        ("compact", "rabbitmq"),
        ("compact", "kafka"),
        ("plain", "rabbitmq"),
        ("plain", "kafka"),
        ("plain", "inmemory", "journal"),
        ("plain", "inmemory", "postgresql"),
        ("services", "rabbitmq", "postgresql"),
        ("compact", "inmemory", "postgresql"),
        ("certificates/service", "services", "certificates", "kafka"),
        ("certificates/deployment", "certificates", "plain", "rabbitmq"),
        ("certificates/service", "compact", "certificates", "kafka"),
        ("mutex/service", "services", "mutex", "kafka"),
        ("mutex/deployment", "mutex", "plain", "rabbitmq"),
        ("virtualization/service", "services", "virtualization", "kafka"),
        ("virtualization/deployment", "virtualization", "plain", "rabbitmq"),
        ("cpu-labels/service", "services", "cpu-labels", "kafka"),
        ("cpu-labels/service", "compact", "cpu-labels", "kafka"),
        ("cpu-labels/deployment", "cpu-labels", "plain", "rabbitmq"),
        ("node-conditions/service", "services", "node-conditions", "kafka"),
        ("node-conditions/service", "compact", "node-conditions", "kafka"),
        ("node-conditions/deployment", "node-conditions", "plain", "rabbitmq"),
        ("notifications/service", "services", "notifications", "kafka"),
        ("notifications/service", "compact", "notifications", "kafka"),
        ("notifications/deployment", "notifications", "plain", "rabbitmq"),
    ],
    ids="-".join,
)
def test_components_can_be_combined(tmp_path: Path, components: tuple[str, ...]) -> None:
    """Check that components that serve functions can be combined with components that deliver events."""
    path_to_root = "../" * len(tmp_path.parts[1:])
    manifests_path = f"{path_to_root}{MANIFESTS.relative_to('/')}"
    kustomization = {
        "resources": [f"{manifests_path}/base"],
        "components": [f"{manifests_path}/components/{name}" for name in components],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))

    objects = render(tmp_path)

    (broker,) = filter_by_kind(objects, "Broker")
    assert broker["metadata"]["annotations"]
    workloads = [
        workload for workload in filter_by_kind(objects, "Service", "Deployment") if "template" in workload["spec"]
    ]
    has_own_process = "certificates" in components  # `renew-certificates` always runs in a separate process.
    optional_components = ("mutex", "virtualization", "cpu-labels", "node-conditions", "notifications")
    optional_step_count = sum(
        len(list_steps(component.replace("-", "_"))) for component in optional_components if component in components
    )
    assert ("apiVersion: serving.knative.dev/" in render_yaml(tmp_path)) is ("plain" not in components)
    assert (
        len(workloads)
        == (1 if "compact" in components else len(FUNCTIONS) - len(OPT_IN_STEPS) - 1)
        + has_own_process
        + optional_step_count
    )
    assert ("PersistentVolumeClaim" in render_yaml(tmp_path)) is ("journal" in components)
    assert render_yaml(tmp_path).count("name: DATABASE_URL") == ("postgresql" in components)


def test_sizing_page_states_cpu_requests_of_install_and_upgrade() -> None:
    """Check the total CPU requests in docs/sizing.md: in an upgrade, all pods except `record` have a successor."""
    proxy_millicores = int(re.findall(r"queue-proxy, which requests (\d+) m", SIZING_PAGE)[0])
    requests: dict[str, int] = {}
    successors = {}
    for workload in render_overlay("knative"):
        if "template" not in workload.get("spec", {}):
            continue
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        is_service = workload["kind"] == "Service"
        pod = int(container["resources"]["requests"]["cpu"].removesuffix("m")) + is_service * proxy_millicores
        name = workload["metadata"]["name"]
        requests[name] = pod * workload["spec"].get("replicas", 1)
        successors[name] = 0 if name == "record" else pod  # `validate` replaces one of its two pods at a time.
    services = [name for name in requests if name not in ("record", "validate", "podsource")]

    assert len(services) == 9
    assert f"requests {sum(requests.values())} m in total" in SIZING_PAGE
    assert f"Services request {sum(requests[name] for name in services)} m of this" in SIZING_PAGE
    assert f"request up to {sum(requests.values()) + sum(successors.values())} m" in SIZING_PAGE


def test_configuration_page_states_retry_durations() -> None:
    """Check that docs/configuration.md states the duration of a Trigger's 40 retries, and their longest delay."""
    delays = [0.25 * attempt for attempt in range(40)]

    assert f"41 in {int(sum(delays))} s" in CONFIGURATION_PAGE
    assert f"up to {int(sum(delays))} s" in CONFIGURATION_PAGE
    assert f"at most {max(delays)} s" in CONFIGURATION_PAGE
    assert f"41 in {sum(range(40))} s" in CONFIGURATION_PAGE  # Knative's first linear delay is zero.


@proves("X-4")
def test_event_table_matches_triggers() -> None:
    """Check that the documented table of events and functions matches the Triggers; `record` gets every event."""
    documented = {
        (row[0].partition("`, of a ")[0].strip("`"), step)
        for row in parse_table(EVENTS_PAGE, "Events of a NodeMaintenance")
        for step in re.findall(r"`(\w+)`", row[3])
    }
    event_types = {
        events.RESOURCE_ADDED,
        events.RESOURCE_UPDATED,
        events.RESOURCE_DELETED,
        events.TICK,
        *events.TYPE_DESCRIPTIONS,
    }
    triggers_by_type = {
        (shorten_type(kind), trigger["spec"]["subscriber"]["ref"]["name"])
        for trigger in filter_by_kind(render(MANIFESTS / "base"), "Trigger")
        if "filter" in trigger["spec"]
        for kind in trigger_checks.match_types(trigger["spec"]["filter"]["attributes"], event_types)
    }

    assert documented == triggers_by_type


def test_event_tables_are_complete() -> None:
    """X-4: the documented event tables list every event type in `eventing/events.py`."""
    rows = parse_table(EVENTS_PAGE, "Events of a NodeMaintenance")
    rows += [row for page in (MUTEX_PAGE, CPU_LABELS_PAGE) for row in parse_table(page, "Event types")]
    documented = {row[0].partition("`, of a ")[0].strip("`") for row in rows}
    source_event_types = {events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.RESOURCE_DELETED, events.TICK}

    assert documented - {shorten_type(kind) for kind in REFERENCE_TYPES} == {
        shorten_type(kind) for kind in (*events.TYPE_DESCRIPTIONS, *source_event_types)
    }


@proves("X-4")
def test_cpu_labels_event_table_matches_triggers() -> None:
    """Check that the page about CPU labels lists each event with its kind, and `label-cpu` as the only function."""
    documented = {(row[0], row[3]) for row in parse_table(CPU_LABELS_PAGE, "Event types")}
    triggers = filter_by_kind(
        list(yaml.safe_load_all((MANIFESTS / "components/cpu-labels/eventing.yaml").read_text())), "Trigger"
    )
    filters = [trigger["spec"]["filter"]["attributes"] for trigger in triggers]

    assert documented == {
        (
            f"`{shorten_type(attributes['type'])}`" + (f", of a {attributes['kind']}" if "kind" in attributes else ""),
            "`label-cpu`",
        )
        for attributes in filters
    }
