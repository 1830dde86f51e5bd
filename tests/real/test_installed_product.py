"""Tests of the product as a user installs it: pods of its image, Knative's programs as pods, unchanged manifests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from eventing import events
from kube.maintenance.groups import KUBEVIRT, MEDIK8S, Group
from localcluster.access import NAMESPACE
from localcluster.demo import real_nodes as demo
from localcluster.demo.common import DemoError
from localcluster.knative import pod_install
from localcluster.nodes import preflight, product_image
from localcluster.programs import build
from tests.localcluster.commands import soon
from tests.machine_speed import is_below, slowness
from tests.postgresql import PostgreSQL
from tests.proofs import proves
from tests.real import applied_manifests, maintenances, self_drain
from tests.real.environment import APPS, Real, owner, ready_and_whole, template
from tests.relay import Relay

pytestmark = pytest.mark.real
COMPONENTS = ("console", "postgresql")
LIMIT, CONSOLE_AGAIN = 200, 60
"""Maximum seconds of a drain, and of the console's unavailability during it.

The limits are for two cores that start forty pods next to another test; docs/sizing.md has the usual durations.
Knative's webhook takes a minute to terminate.
"""
UPGRADED = f"{product_image.NAME}:v0.0.1"
"""The same image with another tag."""
AGAIN = 60.0
"""Maximum seconds until Knative's webhook responds from the other node."""
BUDGET = {"spec": {"minAvailable": None, "maxUnavailable": 1}}
"""The budget patch of docs/install.md.

Knative's own budget blocks the eviction of its webhook while that has fewer than five replicas.
"""
PODSOURCE, MADE_AND_BOUND = "podsource-deployment", 4
"""The Deployment that the ContainerSource creates and its SinkBinding completes, and its maximum generation.

Each of the two may overwrite the other's write once.
"""
BOUND = ("deployment.apps/guard", "deployment.apps/resync")
"""The Deployments whose environment variables Knative completes."""


@dataclass(frozen=True)
class Shipped(Real):
    """The installed product with a journal in PostgreSQL on this machine.

    Attributes:
        overlay: The path of the applied overlay.
        journal: The journal's URL on this machine.
    """

    overlay: str
    journal: str


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shipped]:
    """Yield two real nodes with Knative and the product as pods."""
    preflight.check()
    for tools in (build.NODES, build.KNATIVE):
        build.servers(tools)
    folder = tmp_path_factory.mktemp("shipped")
    with PostgreSQL() as database, pod_install.nodes(folder / "cluster") as (cluster, nodes):
        relay = Relay(database.port, nodes.machine)
        url = database.database()
        seen_by_pods = url.replace(f"127.0.0.1:{database.port}", f"{nodes.machine}:{relay.port}")
        overlay = pod_install.overlay(folder / "overlay", COMPONENTS)
        cluster.kubectl("create", "namespace", NAMESPACE)
        secret = ("create", "secret", "generic", "journal", "-n", NAMESPACE, f"--from-literal=url={seen_by_pods}")
        cluster.kubectl(*secret)
        cluster.kubectl("apply", "-k", overlay)
        pod_install.await_ready(cluster, demo.COMES_LATE)
        real = Shipped(cluster, nodes, str(overlay), url)
        real.door.patch("/apis/policy/v1/namespaces/knative-eventing/poddisruptionbudgets/eventing-webhook", BUDGET)
        yield real
        relay.close()


@proves("X-7")
@pytest.mark.parametrize("group", [MEDIK8S, KUBEVIRT], ids=lambda group: group.api_version)
def test_a_node_is_drained_and_given_back(installed: Shipped, group: Group) -> None:
    """Maintenances of a kwok node, without the product's pods, work with events through Knative's pods."""
    name = group.api_version.split(".")[1]
    maintenances.begin(installed, name, "node-1", group)
    maintenances.until_succeeded(installed, name, group=group)
    maintenances.end(installed, name, "node-1", group)

    assert soon(lambda: events.NODE_RESTORED in self_drain.types(installed.journal, name))


def test_what_the_demo_shows_is_so(installed: Shipped, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that `make demo-real` prints a table of the drained and restored node and of the evicted product pods."""
    demo.drain(installed.cluster, installed.nodes)

    told = capsys.readouterr().out
    assert re.search(r"^demo +real-1 +Succeeded +100 +0 ", told, re.MULTILINE)
    assert re.search(r"^• (1\d|2\d) pods of ours left real-1 in ", told, re.MULTILINE)
    assert re.search(r"^real-1 +Ready ", told, re.MULTILINE)


def test_a_demo_that_goes_otherwise_says_so(installed: Shipped) -> None:
    """Demo checks fail if a container still runs on the node that should be empty."""
    pods = installed.door.list(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    one = next(pod for pod in pods if pod["spec"].get("nodeName") == "real-2")
    with pytest.raises(DemoError, match=one["metadata"]["name"]):
        demo.check(installed.cluster, installed.nodes, [one])


def judge(installed: Shipped, seen: self_drain.Round) -> None:
    """Assert the limits of a drain of the product's own node."""
    print(f"{seen.seconds:.1f} s, {len(seen.evicted)} evictions; console silent {seen.silent:.1f} s")
    assert seen.still == set()
    assert len(seen.evicted) == len(set(seen.evicted)) > 10
    assert is_below(seen.seconds, LIMIT)
    assert seen.silent < CONSOLE_AGAIN
    assert soon(lambda: _missing(installed.journal, seen.evicted) == []), _missing(installed.journal, seen.evicted)


def _missing(journal: str, evicted: Sequence[str]) -> list[str]:
    known = self_drain.journalled(journal)
    return [name for name in evicted if name not in known and not name.startswith("evict-")]


@proves("NMO-24")
def test_all_pods_are_ready_and_a_second_apply_changes_nothing(installed: Shipped) -> None:
    """Pods are Ready with the shipped probes, limits, tokens and read-only root; a second apply changes nothing."""
    pod_install.await_ready(installed.cluster)

    assert len(applied_manifests.ready_pods(installed)) > 20
    applied_manifests.check_second_apply(installed, installed.overlay, BOUND)
    source = installed.door.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{PODSOURCE}")
    assert source["metadata"]["generation"] <= MADE_AND_BOUND, "Knative's controllers do not write it in turn"


@pytest.mark.timeout(1200)
def test_an_upgrade_of_the_image_under_a_running_drain(installed: Shipped) -> None:
    """Drains of the product's own node succeed although another image tag is applied meanwhile.

    Functions, broker, PodSource, journal and console move to the other node and complete the drain, and so does another
    workload. No pod is evicted twice. Each eviction is in the journal, except that of an `evict` pod which evicted
    itself. Other events in the broker's memory are lost (docs/install.md).
    """
    web = template("exec sleep 1000", terminationGracePeriodSeconds=1)
    installed.door.create(f"{APPS}/deployments", owner("web", {"replicas": 6}, web))
    installed.until_pods("web", ready_and_whole(6))
    for node in installed.nodes.nodes:
        node.tag(product_image.IMAGE, UPGRADED)

    name = self_drain.node_of_most(installed)
    seen = self_drain.drain(installed, "upgraded", name, LIMIT * slowness(), lambda: upgrade(installed))
    pod_install.await_ready(installed.cluster)

    judge(installed, seen)
    installed.until_pods("web", ready_and_whole(6))
    assert soon(lambda: our_images(installed) == {UPGRADED})


def upgrade(installed: Shipped) -> None:
    """Apply the other tag; retry while Knative's own webhook moves to another node."""
    overlay = pod_install.overlay(Path(installed.overlay), COMPONENTS, image=UPGRADED)
    assert soon(lambda: installed.cluster.kubectl("apply", "-k", overlay, check=False).returncode == 0, AGAIN)


def our_images(installed: Shipped) -> set[str]:
    """Return the names of the product's images that its pods use."""
    pods = installed.door.list(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    found = {container["image"] for pod in pods for container in pod["spec"]["containers"]}
    return {image for image in found if image.startswith(product_image.NAME)}
