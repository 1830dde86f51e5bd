"""Tests of listing a node's maintenances on a real API server, including API groups that fail."""

from __future__ import annotations

import itertools
from http import HTTPStatus

import pytest

from kube.client.api_errors import Denied, NotFound, Unavailable
from kube.client.sync_client import Cluster
from kube.maintenance.groups import GROUPS, KUBEVIRT_ALPHA
from kube.maintenance.lookup import answered, maintenances, undeleted
from kube.paths import Object
from localcluster.access import service_account
from localcluster.cluster import LocalCluster
from tests.proofs import proves
from tests.workload import Workload

DENIED, GONE = Denied(HTTPStatus.FORBIDDEN, "may not"), Unavailable(0, "no answer")


def in_every_group(work: Workload, node: str) -> list[Object]:
    return [work.maintenance(node, group) for group in GROUPS.values()]


@proves("X-7")
@pytest.mark.usefixtures("leftover")
def test_a_crd_that_knows_no_field_selector_is_listed_whole(installed: LocalCluster, admin: Cluster) -> None:
    """X-7: if the server rejects our field selector for one API group, the list has exactly the node's objects."""
    work = Workload(installed, admin)
    wanted = in_every_group(work, "one-node")
    others = in_every_group(work, "other-node")

    found = admin.run(maintenances(admin.api, "one-node"))

    for item in (*wanted, *others):
        work.delete(f"{GROUPS[item['apiVersion']].path}/{item['metadata']['name']}")
    assert {item["metadata"]["uid"] for item in found} == {item["metadata"]["uid"] for item in wanted}
    assert {item["apiVersion"] for item in found} == set(GROUPS)


def test_a_group_that_is_not_installed_has_none(installed: LocalCluster, admin: Cluster) -> None:
    """C7: an API group that is not installed has no objects; the oldest group is optional."""
    item = Workload(installed, admin).maintenance("a-node")

    found = admin.run(undeleted(admin.api, "a-node"))

    admin.run(admin.api.request("DELETE", f"{GROUPS[item['apiVersion']].path}/{item['metadata']['name']}"))
    with pytest.raises(NotFound):
        admin.list(KUBEVIRT_ALPHA.path)
    assert [each["metadata"]["uid"] for each in found] == [item["metadata"]["uid"]]


@pytest.mark.parametrize("position", range(3))
def test_a_group_that_is_refused_stops_no_other(position: int, caplog: pytest.LogCaptureFixture) -> None:
    """X-6, X-7: an API group that the account may not list counts as refused and is logged; the others are used."""
    answers: list[list[Object] | BaseException] = [[], [], []]
    answers[position] = DENIED

    lists = answered(answers)

    assert [items is None for items in lists] == [number == position for number in range(3)]
    assert "may not" in caplog.text


@pytest.mark.parametrize("answers", sorted(set(itertools.permutations([0, 1, 2]))))
def test_a_group_that_does_not_answer_stops_all(answers: tuple[int, ...]) -> None:
    """X-6: if one API group does not respond, the lookup raises, because a partial list must not pass for complete."""
    known: list[list[Object] | BaseException] = [[], DENIED, GONE]

    with pytest.raises(Unavailable):
        answered([known[number] for number in answers])


def test_when_all_are_refused_there_is_nothing_to_go_by(installed: LocalCluster) -> None:
    """X-6: an account without any permission gets the refusal instead of an empty list."""
    door = Cluster(str(installed.kubeconfig_for(service_account("record"))))

    with pytest.raises(Denied, match="cannot list resource"):
        door.run(undeleted(door.api, "a-node"))
    door.close()
