"""Tests for paged list requests with a real API server."""

from __future__ import annotations

import pytest

from kube.client import paging
from kube.client.api import Api
from kube.client.api_errors import NotFound
from kube.client.paging import list_all
from kube.client.sync_client import SyncClient
from kube.paths import Object
from localcluster.cluster import LocalCluster
from tests.workload import Workload


@pytest.fixture
def configmaps(installed_cluster: LocalCluster, admin_client: SyncClient) -> tuple[str, set[str]]:
    """Create seven labelled ConfigMaps and one without label; return their path and the names of the seven."""
    path = f"/api/v1/namespaces/{Workload(installed_cluster, admin_client).namespace}/configmaps"
    names = {f"map-{number}" for number in range(7)}
    for name in names:
        admin_client.create(path, {"metadata": {"name": name, "labels": {"paged": "yes"}}})
    admin_client.create(path, {"metadata": {"name": "another"}})
    return path, names


@pytest.mark.parametrize("page_size", [1, 3, 7, 500])
def test_list_returns_each_item_once_for_any_page_size(
    admin_client: SyncClient, configmaps: tuple[str, set[str]], monkeypatch: pytest.MonkeyPatch, page_size: int
) -> None:
    """Design rule 10: for any page size, a list contains each item once, and the selector applies to each page."""
    monkeypatch.setattr(paging, "PAGE_SIZE", page_size)
    path, names = configmaps

    items = admin_client.run(list_all(admin_client.api, path, label_selector="paged")).items

    assert sorted(item["metadata"]["name"] for item in items) == sorted(names)


def test_list_is_read_again_if_continue_token_expires(
    admin_client: SyncClient, configmaps: tuple[str, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes API concepts: after a 410 response for page 2, the whole list is read again without duplicates."""
    monkeypatch.setattr(paging, "PAGE_SIZE", 3)
    path, names = configmaps
    list_from_server = Api.list

    async def list_with_expired_token(self: Api, path: str, *, continue_token: str = "", **options: object) -> Object:
        if continue_token:
            raise NotFound(410, "The provided continue parameter is too old")
        return await list_from_server(self, path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Api, "list", list_with_expired_token)

    items = admin_client.run(list_all(admin_client.api, path, label_selector="paged")).items

    assert sorted(item["metadata"]["name"] for item in items) == sorted(names)


def test_paged_list_of_missing_collection_raises_not_found(admin_client: SyncClient) -> None:
    with pytest.raises(NotFound):
        admin_client.run(list_all(admin_client.api, "/apis/example.com/v1/nothing"))


def test_each_page_is_transformed_before_next_page_is_read(
    admin_client: SyncClient, configmaps: tuple[str, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design rule 10: at most one page of complete objects is in memory; the result has the list's resourceVersion."""
    monkeypatch.setattr(paging, "PAGE_SIZE", 3)
    path, names = configmaps
    list_from_server, order = Api.list, ""

    async def list_and_record(self: Api, path: str, **options: object) -> Object:
        nonlocal order
        order += "L"
        return await list_from_server(self, path, **options)  # type: ignore[arg-type]

    def keep_kind_and_name(configmap: Object) -> Object:
        nonlocal order
        order += "T"
        return {"kind": configmap["kind"], "name": configmap["metadata"]["name"]}

    monkeypatch.setattr(Api, "list", list_and_record)

    result = admin_client.run(list_all(admin_client.api, path, label_selector="paged", transform=keep_kind_and_name))

    assert order == "LTTTLTTTLT"
    assert result.items == [{"kind": "ConfigMap", "name": name} for name in sorted(names)]
    assert int(result.resource_version) > 0
