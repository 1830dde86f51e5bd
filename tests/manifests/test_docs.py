"""The statements of docs/ about the manifests are true."""

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
from eventing.event_types import REFERENCES
from eventing.journal.store import Journal
from functions.app import FUNCTIONS
from kube.cpu import capabilities, node_patch
from kube.mutex.objects import FINALIZER, NAMESPACE, RUN_LABEL
from kube.virtualization import virt_launcher_budgets
from localcluster.deploy.preflight import PLACEHOLDER, nameless
from tests.manifests import trigger_checks
from tests.manifests.rendering import INSTALLS, MANIFESTS, OVERLAYS, ROOT, Manifest, of_kind, overlay, rendered, text
from tests.proofs import proves
from tests.sources import OPT_IN, steps_of

INSTALL = (ROOT / "docs/install.md").read_text()
UNINSTALL = (ROOT / "docs/uninstall.md").read_text()
CONFIGURATION = (ROOT / "docs/configuration.md").read_text()
CONSOLE = (ROOT / "docs/console.md").read_text()
OBSERVABILITY = (ROOT / "docs/observability.md").read_text()
EVENTS = (ROOT / "docs/events.md").read_text()
MUTEX = (ROOT / "docs/mutex.md").read_text()
CPU_LABELS = (ROOT / "docs/cpu-labels.md").read_text()


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading, without its header row."""
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def images(objects: list[Manifest]) -> set[str]:
    makers = [item for item in objects if "template" in item.get("spec", {})]
    return {each["image"] for item in makers for each in item["spec"]["template"]["spec"]["containers"]}


def test_the_page_says_how_what_is_outside_an_install_goes_with_it() -> None:
    """Check that the removal instructions handle objects outside of the install in the right order.

    Optional components leave labels on other objects, and finalizers that block the deletion of CRDs. The functions
    that remove them must still run. The CRD of the oldest group, which is in no overlay, is removed after its objects.
    """
    section = UNINSTALL.partition("## Remove the product\n")[2].partition("\n## ")[0]
    lines = section.partition("```console\n")[2].partition("```")[0].splitlines()
    place = {part: number for number, line in enumerate(lines) for part in line.split()}

    assert max(place["nodemaintenances.nodemaintenance.medik8s.io"], place["mutexrunconfigs"]) < place["-k"]
    assert place["nodemaintenances.kubevirt.io"] < place["manifests/v1alpha1"] < place["mine"]
    assert place[capabilities.LABEL] < place[node_patch.MARK] < place["-k"] < place[virt_launcher_budgets.LABEL]
    assert place[RUN_LABEL] > place["-k"]
    assert f"-n {NAMESPACE} -l {RUN_LABEL}" in section
    assert FINALIZER in UNINSTALL


def test_the_page_lists_every_overlay() -> None:
    """NMO-24: docs/install.md lists exactly the existing overlays."""
    assert {row[0].strip("`") for row in rows(INSTALL, "Choose an overlay")} == set(INSTALLS)


def shown(folder: Path, number: int, page: str = INSTALL) -> list[Manifest]:
    """Render the overlay that the page shows as its n-th one."""
    written = re.findall(r"<<END\n(.*?)\nEND\n", page, re.DOTALL)[number]
    relative = f"{'../' * len(folder.parts[1:])}{MANIFESTS.relative_to('/')}"
    (folder / "kustomization.yaml").write_text(written.replace("../manifests", relative))
    return rendered(folder)


@pytest.mark.parametrize(("number", "name"), [(0, "knative"), (1, "func")])
def test_an_overlay_of_ones_own_as_shown_names_the_image_everywhere(tmp_path: Path, number: int, name: str) -> None:
    """Check that the overlays in the page replace the image of all functions and of PodSource at once."""
    objects = shown(tmp_path, number)

    assert images(overlay(name)) == {PLACEHOLDER}
    assert images(objects) == {"registry.example/nodemaintenance:v1"}
    assert len(objects) == len(overlay(name))


def test_every_overlay_that_a_page_shows_names_the_image() -> None:
    """Check that every overlay in the docs sets an image; otherwise no pod starts, and `make deploy` refuses it."""
    pages = [page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))]
    files = re.findall(r"^kind: Kustomization\n(.*?)\n(?:END|```)$", "\n".join(pages), re.DOTALL | re.MULTILINE)

    assert len(files) >= 5
    assert [file for file in files if f"images: [{{name: {PLACEHOLDER}, newName:" not in file] == []


READ = (*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "config/samples").iterdir()), ROOT / "README.md")


@pytest.mark.parametrize("page", [page for page in READ if page.name != "requirements.md"], ids=lambda page: page.name)
def test_no_page_leans_on_a_document_that_its_reader_lacks(page: Path) -> None:
    """Check that no page refers to a requirement document that the reader does not have; docs/requirements.md may."""
    assert not re.findall(r"\b(?:document 00\d|(?:the|its) document\b)", page.read_text(), re.IGNORECASE)


SERVED = {"knative": ("Service", "record"), "plain": ("Deployment", "record"), "compact": ("Service", "functions")}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "served"), [(name, *found) for name, found in SERVED.items()], ids=SERVED)
def test_the_journal_is_read_in_its_pod_as_shown(name: str, kind: str, served: str, tmp_path: Path) -> None:
    """Check that the command of docs/observability.md reads the journal with its pod's program and variables."""
    (program,) = re.findall(r"kubectl exec -n node-maintenance \$pod -- python (.*) > ", OBSERVABILITY)
    (pod,) = [
        item["spec"]["template"]["spec"]["containers"][0]
        for item in of_kind(overlay(name), kind)
        if item["metadata"]["name"] == served and "template" in item["spec"]
    ]
    (journal,) = [item["value"] for item in pod["env"] if item["name"] == "JOURNAL"]
    with closing(Journal(tmp_path / Path(journal).name)) as book:
        book.write(CloudEvent({"id": "tick", "source": "/ping", "type": events.TICK}, {}))

    words = [sys.executable, *program.split()]
    variables = {"JOURNAL": str(tmp_path / Path(journal).name)}
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60, check=True)

    assert json.loads(done.stdout)["id"] == "tick"


def test_the_first_install_shown_looks_before_it_applies() -> None:
    """NMO-26a: docs/install.md starts with `make deploy`: `kubectl apply` could take over another install's rights."""
    section = INSTALL.partition("## Install the product\n")[2].partition("\n## ")[0]
    shown_first = section.partition("```console\n")[2].partition("```")[0]

    assert "$ make deploy OVERLAY=mine" in shown_first
    assert "$ kubectl apply" not in shown_first


@pytest.mark.parametrize("name", OVERLAYS)
def test_no_overlay_of_ours_has_an_image_that_a_registry_has(name: str) -> None:
    """Check that no overlay has a usable image name, so that `make deploy` refuses each one unchanged."""
    assert nameless(overlay(name))


def test_a_console_behind_a_proxy_as_shown_knows_its_proxy(tmp_path: Path) -> None:
    """Check that the console overlay in the page sets the proxy's secret, its addresses and the public host name."""
    deployments = of_kind(shown(tmp_path, 1, CONSOLE), "Deployment")
    (console,) = [item for item in deployments if item["metadata"]["name"] == "console"]

    (container,) = console["spec"]["template"]["spec"]["containers"]
    variables = {item["name"]: item.get("value") for item in container["env"]}
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
    ],
    ids="-".join,
)
def test_components_combine(tmp_path: Path, components: tuple[str, ...]) -> None:
    """Check that each way to serve the functions can be combined with each way to deliver events."""
    up = "../" * len(tmp_path.parts[1:])
    there = f"{up}{MANIFESTS.relative_to('/')}"
    file = {"resources": [f"{there}/base"], "components": [f"{there}/components/{name}" for name in components]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(file))

    objects = rendered(tmp_path)

    (broker,) = of_kind(objects, "Broker")
    assert broker["metadata"]["annotations"]
    served = [item for item in of_kind(objects, "Service", "Deployment") if "template" in item["spec"]]
    alone = "certificates" in components  # its function has a separate process in any case
    opted = ("mutex", "virtualization", "cpu-labels")
    more = sum(len(steps_of(wing.replace("-", "_"))) for wing in opted if wing in components)
    assert ("serving.knative.dev" in text(tmp_path)) is ("plain" not in components)
    assert len(served) == (1 if "compact" in components else len(FUNCTIONS) - len(OPT_IN) - 1) + alone + more
    assert ("PersistentVolumeClaim" in text(tmp_path)) is ("journal" in components)
    assert text(tmp_path).count("name: DATABASE_URL") == ("postgresql" in components)


def test_the_page_says_for_how_long_a_delivery_is_tried() -> None:
    """Check the retry durations: ten retries that double from 0.2 s, as in every Trigger."""
    seconds = sum(0.2 * 2**attempt for attempt in range(10))

    assert f"11 in {int(seconds)} s" in CONFIGURATION
    assert f"up to {int(seconds)} s" in CONFIGURATION
    assert f"41 in {sum(range(40))} s" in CONFIGURATION  # Knative's first linear delay is zero


@proves("X-4")
def test_the_table_of_events_is_the_triggers() -> None:
    """Check that the page's table of events and functions agrees with the Triggers; `record` receives every event."""
    told = {
        (row[0].partition("`, of a ")[0].strip("`"), step)
        for row in rows(EVENTS, "Events of a NodeMaintenance")
        for step in re.findall(r"`(\w+)`", row[3])
    }
    heard = {events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.RESOURCE_DELETED, events.TICK, *events.MEANINGS}
    shipped = {
        (short(kind), item["spec"]["subscriber"]["ref"]["name"])
        for item in of_kind(rendered(MANIFESTS / "base"), "Trigger")
        if "filter" in item["spec"]
        for kind in trigger_checks.brings(item["spec"]["filter"]["attributes"], heard)
    }

    assert told == shipped


def test_the_table_of_events_names_the_whole_vocabulary() -> None:
    """X-4: the tables of events name every event type of `eventing/events.py`."""
    listed = rows(EVENTS, "Events of a NodeMaintenance")
    listed += [row for page in (MUTEX, CPU_LABELS) for row in rows(page, "What each event is")]
    told = {row[0].partition("`, of a ")[0].strip("`") for row in listed}
    heard = {events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.RESOURCE_DELETED, events.TICK}

    assert told - {short(kind) for kind in REFERENCES} == {short(kind) for kind in (*events.MEANINGS, *heard)}


@proves("X-4")
def test_the_table_of_the_labels_of_cpus_is_the_triggers_of_their_component() -> None:
    """Check that the CPU labels page lists each event, its kind and `label-cpu` as the only function."""
    told = {(row[0], row[3]) for row in rows(CPU_LABELS, "What each event is")}
    triggers = of_kind(
        list(yaml.safe_load_all((MANIFESTS / "components/cpu-labels/eventing.yaml").read_text())), "Trigger"
    )
    wanted = [trigger["spec"]["filter"]["attributes"] for trigger in triggers]

    assert told == {
        (f"`{short(each['type'])}`" + (f", of a {each['kind']}" if "kind" in each else ""), "`label-cpu`")
        for each in wanted
    }


def short(kind: str) -> str:
    """Return the event type without its vendor prefix."""
    return kind.removeprefix("dev.nodemaintenance.").removeprefix("dev.knative.")
