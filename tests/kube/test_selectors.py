"""Label selectors: a truth table, and the API server's own answer to the same question."""

from __future__ import annotations

import pytest

from kube.door.cluster import Cluster
from kube.paths import Object
from kube.selectors import matches, text
from localcluster.cluster import LocalCluster
from tests.workload import Workload

LABELS = [{}, {"app": "db"}, {"app": "web"}, {"tier": "x"}, {"app": "db", "tier": "x"}, {"app": ""}]


def expression(operator: str, *values: str) -> Object:
    return {"matchExpressions": [{"key": "app", "operator": operator, **({"values": list(values)} if values else {})}]}


CASES = [
    pytest.param({"matchLabels": {"app": "db"}}, "app=db", [1, 4], id="matchLabels"),
    pytest.param({"matchLabels": {"app": "db", "tier": "x"}}, "app=db,tier=x", [4], id="both labels"),
    pytest.param({"matchLabels": {"app": ""}}, "app=", [5], id="empty value"),
    pytest.param(expression("In", "db", "web"), "app in (db,web)", [1, 2, 4], id="In"),
    pytest.param(expression("NotIn", "db"), "app notin (db)", [0, 2, 3, 5], id="NotIn"),
    pytest.param(expression("Exists"), "app", [1, 2, 4, 5], id="Exists"),
    pytest.param(expression("DoesNotExist"), "!app", [0, 3], id="DoesNotExist"),
    pytest.param({"matchLabels": {"tier": "x"}, **expression("Exists")}, "tier=x,app", [4], id="labels and expression"),
    pytest.param({}, "", [0, 1, 2, 3, 4, 5], id="empty"),
]


@pytest.fixture(scope="module")
def listed(installed: LocalCluster, admin: Cluster) -> tuple[Cluster, str]:
    """Give a namespace with one ConfigMap for each of LABELS, named by its number."""
    work = Workload(installed, admin)
    path = f"/api/v1/namespaces/{work.namespace}/configmaps"
    for number, labels in enumerate(LABELS):
        admin.create(path, {"metadata": {"name": f"{number}", "labels": {"of": "test", **labels}}})
    return admin, path


@pytest.mark.parametrize(("selector", "query", "numbers"), CASES)
def test_a_selector_selects(selector: Object, query: str, numbers: list[int], listed: tuple[Cluster, str]) -> None:
    """NMO-6: a LabelSelector selects by our rules what the API server lists by the same selector."""
    admin, path = listed
    by_server = admin.list(path, labels=f"of=test,{query}".rstrip(","))["items"]

    assert [number for number, labels in enumerate(LABELS) if matches(selector, labels)] == numbers
    assert [int(item["metadata"]["name"]) for item in by_server] == numbers


def test_no_selector_selects_nothing() -> None:
    """NMO-6: None is no selector, unlike an empty one."""
    assert not matches(None, {"app": "db"})


def test_an_unknown_operator_is_an_error() -> None:
    """NMO-6: what cannot be understood is not taken for a no."""
    with pytest.raises(ValueError, match="unknown selector operator 'Gt'"):
        matches(expression("Gt", "1"), {"app": "2"})


@pytest.mark.parametrize(("selector", "query", "_places"), CASES)
def test_a_selector_is_written_as_the_query_takes_it(selector: Object, query: str, _places: list[int]) -> None:
    assert text(selector) == query


@pytest.mark.parametrize(
    "selector", [{"matchlabels": {}}, {"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]}]
)
def test_what_no_selector_has_is_refused(selector: Object) -> None:
    with pytest.raises(ValueError, match="unknown"):
        text(selector)
