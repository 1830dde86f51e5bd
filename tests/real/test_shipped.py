"""The product as a user installs it: pods of our image, Knative's programs as pods, the manifests as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from eventing import events
from kube.maintenance.groups import KUBEVIRT, MEDIK8S, Group
from localcluster.access import NAMESPACE
from localcluster.demo import real as demo
from localcluster.demo.telling import DemoError
from localcluster.knative import shipped
from localcluster.nodes import machine, product_image
from localcluster.programs import build
from tests.localcluster.commands import soon
from tests.machine import is_below, slowness
from tests.postgresql import PostgreSQL
from tests.proofs import proves
from tests.real import applied, maintenances, selfdrain
from tests.real.containers import APPS, Real, owner, ready_and_whole, template
from tests.relay import Relay

pytestmark = pytest.mark.real
COMPONENTS = ("console", "postgresql")
LIMIT, CONSOLE_AGAIN = 200, 60
"""Seconds, of a machine whose two cores start forty pods beside another test; docs/install.md has what is usual:
Knative's webhook takes a minute to end."""
UPGRADED = f"{product_image.NAME}:v0.0.1"
"""The same image by another tag."""
AGAIN = 60.0
"""Seconds within which Knative's webhook answers from the other node."""
BUDGET = {"spec": {"minAvailable": None, "maxUnavailable": 1}}
"""As docs/install.md says: Knative's own keeps its webhook where it is, as long as there are fewer than five of it."""
PODSOURCE, MADE_AND_BOUND = "podsource-deployment", 4
"""Made by the ContainerSource, completed by its SinkBinding; one write of either may cross the other's."""
BOUND = ("deployment.apps/guard", "deployment.apps/resync")
"""Whose environment Knative completes."""


@dataclass(frozen=True)
class Shipped(Real):
    """As applied, with a journal in a PostgreSQL of this machine.

    Attributes:
        journal: its URL on this machine.
    """

    overlay: str
    journal: str


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shipped]:
    """Two real nodes, Knative and the product as pods."""
    machine.check()
    for tools in (build.NODES, build.KNATIVE):
        build.servers(tools)
    folder = tmp_path_factory.mktemp("shipped")
    with PostgreSQL() as database, shipped.nodes(folder / "cluster") as (cluster, nodes):
        relay = Relay(database.port, nodes.machine)
        url = database.database()
        seen_by_pods = url.replace(f"127.0.0.1:{database.port}", f"{nodes.machine}:{relay.port}")
        overlay = shipped.overlay(folder / "overlay", COMPONENTS)
        cluster.kubectl("create", "namespace", NAMESPACE)
        secret = ("create", "secret", "generic", "journal", "-n", NAMESPACE, f"--from-literal=url={seen_by_pods}")
        cluster.kubectl(*secret)
        cluster.kubectl("apply", "-k", overlay)
        shipped.await_ready(cluster, demo.COMES_LATE)
        real = Shipped(cluster, nodes, str(overlay), url)
        real.door.patch("/apis/policy/v1/namespaces/knative-eventing/poddisruptionbudgets/eventing-webhook", BUDGET)
        yield real
        relay.close()


@proves("X-7")
@pytest.mark.parametrize("group", [MEDIK8S, KUBEVIRT], ids=lambda group: group.api_version)
def test_a_node_is_drained_and_given_back(installed: Shipped, group: Group) -> None:
    """Events through Knative's pods: a node of kwok's, with nothing of ours on it."""
    name = group.api_version.split(".")[1]
    maintenances.begin(installed, name, "node-1", group)
    maintenances.until_succeeded(installed, name, group=group)
    maintenances.end(installed, name, "node-1", group)

    assert soon(lambda: events.NODE_RESTORED in selfdrain.types(installed.journal, name))


def test_what_the_demo_shows_is_so(installed: Shipped, capsys: pytest.CaptureFixture[str]) -> None:
    """`make demo-real`: the node on which the product runs is drained, and given back."""
    demo.drain(installed.cluster, installed.nodes)

    told = capsys.readouterr().out
    assert re.search(r"^demo +real-1 +Succeeded +100 +0 ", told, re.MULTILINE)
    assert re.search(r"^• (1\d|2\d) pods of ours left real-1 in ", told, re.MULTILINE)
    assert re.search(r"^real-1 +Ready ", told, re.MULTILINE)


def test_a_demo_that_goes_otherwise_says_so(installed: Shipped) -> None:
    """A container that runs on, on a node that was to be empty, is no success."""
    pods = installed.door.list(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    one = next(pod for pod in pods if pod["spec"].get("nodeName") == "real-2")
    with pytest.raises(DemoError, match=one["metadata"]["name"]):
        demo.check(installed.cluster, installed.nodes, [one])


def judge(installed: Shipped, seen: selfdrain.Round) -> None:
    """Hold a drain of the product's own node against what it must be."""
    print(f"{seen.seconds:.1f} s, {len(seen.evicted)} evictions; console silent {seen.silent:.1f} s")
    assert seen.still == set()
    assert len(seen.evicted) == len(set(seen.evicted)) > 10
    assert is_below(seen.seconds, LIMIT)
    assert seen.silent < CONSOLE_AGAIN
    assert soon(lambda: _missing(installed.journal, seen.evicted) == []), _missing(installed.journal, seen.evicted)


def _missing(journal: str, evicted: Sequence[str]) -> list[str]:
    known = selfdrain.journalled(journal)
    return [name for name in evicted if name not in known and not name.startswith("evict-")]


@proves("NMO-24")
def test_all_pods_are_ready_and_a_second_apply_changes_nothing(installed: Shipped) -> None:
    """Probes, limits, tokens and a root that is read-only, as shipped; Knative made its adapters by itself."""
    shipped.await_ready(installed.cluster)

    assert len(applied.ready_pods(installed)) > 20
    applied.check_second_apply(installed, installed.overlay, BOUND)
    source = installed.door.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{PODSOURCE}")
    assert source["metadata"]["generation"] <= MADE_AND_BOUND, "Knative's controllers do not write it in turn"


@pytest.mark.timeout(1200)
def test_an_upgrade_of_the_image_under_a_running_drain(installed: Shipped) -> None:
    """Another tag is applied while the product's node is drained, back again: each pod is of that image at its end.

    Functions, broker, PodSource, journal and console leave by themselves, move, and end the drain, beside a workload.
    No pod is evicted twice, and each is in the journal, but for a pod of `evict` that was evicted by itself. What else
    was in the broker's memory is not (docs/install.md).
    """
    web = template("exec sleep 1000", terminationGracePeriodSeconds=1)
    installed.door.create(f"{APPS}/deployments", owner("web", {"replicas": 6}, web))
    installed.until_pods("web", ready_and_whole(6))
    for node in installed.nodes.nodes:
        node.tag(product_image.IMAGE, UPGRADED)

    name = selfdrain.node_of_most(installed)
    seen = selfdrain.drain(installed, "upgraded", name, LIMIT * slowness(), lambda: upgrade(installed))
    shipped.await_ready(installed.cluster)

    judge(installed, seen)
    installed.until_pods("web", ready_and_whole(6))
    assert soon(lambda: our_images(installed) == {UPGRADED})


def upgrade(installed: Shipped) -> None:
    """Apply the other tag; anew as long as Knative's own webhook is on its way to another node."""
    overlay = shipped.overlay(Path(installed.overlay), COMPONENTS, image=UPGRADED)
    assert soon(lambda: installed.cluster.kubectl("apply", "-k", overlay, check=False).returncode == 0, AGAIN)


def our_images(installed: Shipped) -> set[str]:
    """Give the names of our image that there are pods of."""
    pods = installed.door.list(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    found = {container["image"] for pod in pods for container in pod["spec"]["containers"]}
    return {image for image in found if image.startswith(product_image.NAME)}
