"""Tests of paged lists against a real API server."""

from __future__ import annotations

import pytest

from kube.client import paging
from kube.client.api import Api
from kube.client.api_errors import NotFound
from kube.client.paging import pages
from kube.client.sync_client import Cluster
from kube.paths import Object
from localcluster.cluster import LocalCluster
from tests.workload import Workload


@pytest.fixture
def maps(installed: LocalCluster, admin: Cluster) -> tuple[str, set[str]]:
    """Create seven ConfigMaps with a label and one without; return the collection's path and the names of the seven."""
    path = f"/api/v1/namespaces/{Workload(installed, admin).namespace}/configmaps"
    names = {f"map-{number}" for number in range(7)}
    for name in names:
        admin.create(path, {"metadata": {"name": name, "labels": {"paged": "yes"}}})
    admin.create(path, {"metadata": {"name": "another"}})
    return path, names


@pytest.mark.parametrize("page", [1, 3, 7, 500])
def test_all_pages_are_the_whole_list(
    admin: Cluster, maps: tuple[str, set[str]], monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """Rule 10: whatever the page size, a list returns each item once, and each page applies the selector."""
    monkeypatch.setattr(paging, "PAGE", page)
    path, names = maps

    items = admin.run(pages(admin.api, path, labels="paged")).items

    assert sorted(item["metadata"]["name"] for item in items) == sorted(names)


def test_where_the_pages_are_forgotten_the_list_is_read_anew(
    admin: Cluster, maps: tuple[str, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """API concepts, "resource versions": after a 410 for page 2, the whole list is read again without duplicates."""
    monkeypatch.setattr(paging, "PAGE", 3)
    path, names = maps
    real = Api.list

    async def forgetful(self: Api, path: str, *, token: str = "", **more: object) -> Object:
        if token:
            raise NotFound(410, "The provided continue parameter is too old")
        return await real(self, path, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Api, "list", forgetful)

    items = admin.run(pages(admin.api, path, labels="paged")).items

    assert sorted(item["metadata"]["name"] for item in items) == sorted(names)


def test_a_collection_that_is_not_there_is_an_error(admin: Cluster) -> None:
    with pytest.raises(NotFound):
        admin.run(pages(admin.api, "/apis/example.com/v1/nothing"))


def test_a_page_is_cut_down_before_the_next_one_is_read(
    admin: Cluster, maps: tuple[str, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 10: at most one page of complete objects is in memory; the list returns its resourceVersion."""
    monkeypatch.setattr(paging, "PAGE", 3)
    path, names = maps
    real, order = Api.list, ""

    async def listing(self: Api, path: str, **more: object) -> Object:
        nonlocal order
        order += "L"
        return await real(self, path, **more)  # type: ignore[arg-type]

    def name_only(item: Object) -> Object:
        nonlocal order
        order += "k"
        return {"kind": item["kind"], "name": item["metadata"]["name"]}

    monkeypatch.setattr(Api, "list", listing)

    listed = admin.run(pages(admin.api, path, labels="paged", keep=name_only))

    assert order == "LkkkLkkkLk"
    assert listed.items == [{"kind": "ConfigMap", "name": name} for name in sorted(names)]
    assert int(listed.version) > 0
