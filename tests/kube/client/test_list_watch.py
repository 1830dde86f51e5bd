"""Tests for `follow` with a real API server, through a relay whose connections a test can cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from kube.client.api import APPLY_PATCH, Api
from kube.client.api_errors import ApiError, Denied, NotFound, build_api_error
from kube.client.list_watch import MIN_BACKOFF_SECONDS, Change, StreamObserver, follow
from kube.paths import Object
from localcluster import access
from localcluster.cluster import LocalCluster
from tests.eventing.local.tcp_relay import TcpRelay

CHANGE_TIMEOUT_SECONDS = 20.0
"""Time within which `follow` must yield the next change."""
ChangeStream = AsyncGenerator[Change, None]


@pytest.fixture
def api_relay(cluster: LocalCluster) -> Iterator[TcpRelay]:
    port = urlsplit(cluster.url).port
    assert port is not None
    relay = TcpRelay(port)
    yield relay
    relay.close()


@pytest.fixture
def namespace(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the name of a new namespace, and delete the namespace after the test."""
    name = f"following-{abs(hash(request.node.name)) % 10**8}"
    cluster.get_client().create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    delete_object(cluster, f"/api/v1/namespaces/{name}")


def apply_object(cluster: LocalCluster, path: str, body: Object) -> None:
    """Create or update the object at `path` by server-side apply."""
    query = {"fieldManager": "test", "force": "true"}
    client = cluster.get_client()
    client.run(client.api.request("PATCH", path, query=query, body=body, content_type=APPLY_PATCH))


def delete_object(cluster: LocalCluster, path: str) -> None:
    """Delete the object at `path`."""
    cluster.get_client().run(cluster.get_client().api.request("DELETE", path))


def run_through_relay(
    cluster: LocalCluster, relay: TcpRelay, check: Callable[[Api], Awaitable[None]], api_class: type[Api] = Api
) -> None:
    """Call `check` with an API client whose connections go through `relay`."""
    kubeconfig = write_relay_kubeconfig(cluster, relay)

    async def connect_and_check() -> None:
        api = await api_class.connect(str(kubeconfig))
        try:
            await check(api)
        finally:
            await api.close()

    asyncio.run(connect_and_check())


def write_relay_kubeconfig(cluster: LocalCluster, relay: TcpRelay) -> Path:
    file = cluster.directory / f"relay-{relay.port}.kubeconfig"
    return access.write_proxied_kubeconfig(f"https://127.0.0.1:{relay.port}", cluster.kubeconfig, cluster.url, file)


async def collect_changes(changes: ChangeStream, count: int) -> list[tuple[str, str]]:
    """Return the next `count` changes as (change type, object name)."""
    collected: list[tuple[str, str]] = []
    for _ in range(count):
        change = await asyncio.wait_for(anext(changes), CHANGE_TIMEOUT_SECONDS)
        collected.append((change.change_type, change.object["metadata"].get("name", "")))
    return collected


def apply_configmap(cluster: LocalCluster, namespace: str, name: str, **data: str) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}
    apply_object(cluster, f"/api/v1/namespaces/{namespace}/configmaps/{name}", body)


def get_configmaps_query(namespace: str) -> tuple[str, dict[str, Any]]:
    """Return the arguments that list a namespace's ConfigMaps, except kube-root-ca.crt, which every namespace has."""
    return f"/api/v1/namespaces/{namespace}/configmaps", {"field_selector": "metadata.name!=kube-root-ca.crt"}


def test_existing_objects_are_yielded_before_changes(
    cluster: LocalCluster, api_relay: TcpRelay, namespace: str
) -> None:
    """Check that `follow` yields existing objects, then SYNCED with the list's resourceVersion, then changes in order.

    Each object contains its kind, and a deleted object has its last state.
    """
    apply_configmap(cluster, namespace, "one")

    async def check_changes(api: Api) -> None:
        path, selector = get_configmaps_query(namespace)
        async with aclosing(follow(api, path, **selector)) as changes:
            first_change = await anext(changes)
            synced = await anext(changes)
            apply_configmap(cluster, namespace, "two", x="1")
            apply_configmap(cluster, namespace, "two", x="2")
            delete_object(cluster, f"/api/v1/namespaces/{namespace}/configmaps/two")
            later_changes = [await asyncio.wait_for(anext(changes), CHANGE_TIMEOUT_SECONDS) for _ in range(3)]

        assert (first_change.change_type, first_change.object["kind"], first_change.object["apiVersion"]) == (
            "ADDED",
            "ConfigMap",
            "v1",
        )
        assert synced.change_type == "SYNCED"
        assert int(synced.object["metadata"]["resourceVersion"]) > 0
        assert [change.change_type for change in later_changes] == ["ADDED", "MODIFIED", "DELETED"]
        versions = [int(change.object["metadata"]["resourceVersion"]) for change in later_changes]
        assert versions == sorted(set(versions))
        assert later_changes[2].object["data"] == {"x": "2"}

    run_through_relay(cluster, api_relay, check_changes)


@pytest.mark.parametrize(
    "refused_statuses", [[], [422], [403, 503]], ids=["supported", "unsupported", "refused and unavailable"]
)
def test_streaming_list_yields_existing_objects(
    cluster: LocalCluster, api_relay: TcpRelay, namespace: str, refused_statuses: list[int]
) -> None:
    """KEP-3157: a streaming list yields each existing object once and then SYNCED, without a list request.

    If the API server rejects the streaming list, the existing objects come from an ordinary list request.
    """
    apply_configmap(cluster, namespace, "one")
    apply_configmap(cluster, namespace, "two")

    async def check_changes(api: Api) -> None:
        assert isinstance(api, ApiWithFailures)
        api.watch_failures[:] = refused_statuses[:1]
        api.list_failures[:] = refused_statuses[1:]
        path, selector = get_configmaps_query(namespace)
        async with aclosing(
            follow(api, path, use_streaming_list=True, observer=RecordingObserver(), **selector)
        ) as changes:
            first_changes = await collect_changes(changes, 3)
            list_count = api.list_count
            apply_configmap(cluster, namespace, "one", x="1")
            delete_object(cluster, f"/api/v1/namespaces/{namespace}/configmaps/two")
            later_changes = await collect_changes(changes, 2)

        assert sorted(first_changes[:2]) == [("ADDED", "one"), ("ADDED", "two")]
        assert first_changes[2] == ("SYNCED", "")
        assert later_changes == [("MODIFIED", "one"), ("DELETED", "two")]
        assert list_count == len(refused_statuses)

    run_through_relay(cluster, api_relay, check_changes, ApiWithFailures)


def test_deletion_during_interrupted_streaming_list_is_yielded(
    cluster: LocalCluster, api_relay: TcpRelay, namespace: str
) -> None:
    """Check that an object deleted after the connection broke is yielded as DELETED, and none is yielded twice."""
    apply_configmap(cluster, namespace, "one")
    apply_configmap(cluster, namespace, "two")

    async def check_changes(api: Api) -> None:
        assert isinstance(api, ApiWithBreakingWatch)
        path, selector = get_configmaps_query(namespace)
        async with aclosing(follow(api, path, use_streaming_list=True, **selector)) as changes:
            first_changes = await collect_changes(changes, 1)
            delete_object(cluster, f"/api/v1/namespaces/{namespace}/configmaps/one")
            later_changes = await collect_changes(changes, 3)

        assert first_changes == [("ADDED", "one")]
        assert later_changes == [("DELETED", "one"), ("ADDED", "two"), ("SYNCED", "")]

    run_through_relay(cluster, api_relay, check_changes, ApiWithBreakingWatch)


def test_only_changes_are_yielded_with_emit_initial_false(
    cluster: LocalCluster, api_relay: TcpRelay, namespace: str
) -> None:
    """Check that with `emit_initial=False`, only changes and deletions of existing objects are yielded."""
    apply_configmap(cluster, namespace, "one")

    async def check_changes(api: Api) -> None:
        path, selector = get_configmaps_query(namespace)
        async with aclosing(follow(api, path, emit_initial=False, **selector)) as changes:
            synced = await collect_changes(changes, 1)
            delete_object(cluster, f"/api/v1/namespaces/{namespace}/configmaps/one")
            assert synced == [("SYNCED", "")]
            assert await collect_changes(changes, 1) == [("DELETED", "one")]

    run_through_relay(cluster, api_relay, check_changes)


def test_broken_watch_resumes_without_loss_or_repetition(
    cluster: LocalCluster, api_relay: TcpRelay, namespace: str
) -> None:
    """Check that changes that were made while the connection was cut are yielded in order and only once."""
    apply_configmap(cluster, namespace, "one")

    async def check_changes(api: Api) -> None:
        path, selector = get_configmaps_query(namespace)
        async with aclosing(follow(api, path, **selector)) as changes:
            assert await collect_changes(changes, 2) == [("ADDED", "one"), ("SYNCED", "")]
            apply_configmap(cluster, namespace, "two")
            assert await collect_changes(changes, 1) == [("ADDED", "two")]
            api_relay.cut()
            apply_configmap(cluster, namespace, "three")
            delete_object(cluster, f"/api/v1/namespaces/{namespace}/configmaps/one")
            change_task = asyncio.ensure_future(collect_changes(changes, 2))
            await asyncio.sleep(0)
            api_relay.restore()
            assert await change_task == [("ADDED", "three"), ("DELETED", "one")]

    run_through_relay(cluster, api_relay, check_changes)


class ApiWithExpiredVersion(Api):
    """API client that resumes the next watch from an expired resourceVersion if `use_expired_version` is set."""

    use_expired_version = False

    async def watch(
        self, path: str, *, resource_version: str, field_selector: str = "", label_selector: str = ""
    ) -> AsyncIterator[tuple[str, Object]]:
        start_version, self.use_expired_version = "1" if self.use_expired_version else resource_version, False
        watch: Any = super().watch(
            path, resource_version=start_version, field_selector=field_selector, label_selector=label_selector
        )
        async with aclosing(watch) as changes:
            async for change in changes:
                yield change


CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.following.example.com}
spec:
  group: following.example.com
  scope: Namespaced
  names: {kind: Widget, plural: widgets, singular: widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""


@pytest.fixture
def widgets_path(cluster: LocalCluster, namespace: str) -> Iterator[str]:
    """Yield the API path of a new custom resource kind.

    The API server's watch history of this kind begins with the creation of its CRD, so resourceVersion 1 is expired.
    """
    cluster.kubectl("apply", "-f", "-", input=CRD)
    cluster.wait_for_crds("widgets.following.example.com")
    yield f"/apis/following.example.com/v1/namespaces/{namespace}/widgets"
    cluster.kubectl("delete", "crd", "widgets.following.example.com")


def test_only_changed_objects_are_yielded_after_410_response(
    cluster: LocalCluster, api_relay: TcpRelay, namespace: str, widgets_path: str
) -> None:
    """Check that each deleted, recreated, changed or added object is yielded once, and no unchanged object."""

    def apply_widget(name: str, value: str) -> None:
        metadata = {"name": name, "namespace": namespace}
        body = {"apiVersion": "following.example.com/v1", "kind": "Widget", "metadata": metadata, "x": value}
        apply_object(cluster, f"{widgets_path}/{name}", body)

    for name in ("unchanged", "deleted", "recreated", "changed"):
        apply_widget(name, "1")

    async def check_changes(api: Api) -> None:
        assert isinstance(api, ApiWithExpiredVersion)
        async with aclosing(follow(api, widgets_path)) as changes:
            assert len(await collect_changes(changes, 5)) == 5
            api_relay.cut()
            for name in ("deleted", "recreated"):
                delete_object(cluster, f"{widgets_path}/{name}")
            for name in ("recreated", "changed", "added"):
                apply_widget(name, "2")
            api.use_expired_version = True
            api_relay.restore()
            differences = await collect_changes(changes, 5)
            apply_widget("last", "1")
            last_changes = await collect_changes(changes, 1)

        assert set(differences[:2]) == {("DELETED", "deleted"), ("DELETED", "recreated")}
        assert set(differences[2:]) == {("ADDED", "recreated"), ("MODIFIED", "changed"), ("ADDED", "added")}
        assert last_changes == [("ADDED", "last")]
        assert not api.use_expired_version

    run_through_relay(cluster, api_relay, check_changes, ApiWithExpiredVersion)


def test_follow_of_unserved_kind_raises_not_found(cluster: LocalCluster, api_relay: TcpRelay) -> None:
    """Check that `follow` raises `NotFound` if the API server does not serve the kind at the first request."""

    async def check_changes(api: Api) -> None:
        with pytest.raises(NotFound):
            await anext(follow(api, "/apis/example.com/v1/things"))

    run_through_relay(cluster, api_relay, check_changes)


def test_first_list_request_is_retried_until_api_server_is_available(
    cluster: LocalCluster, api_relay: TcpRelay, namespace: str
) -> None:
    """Check that `follow` retries its first list request until the API server is available."""
    api_relay.cut()

    async def check_changes(api: Api) -> None:
        path, selector = get_configmaps_query(namespace)
        async with aclosing(follow(api, path, **selector)) as changes:
            change_task = asyncio.ensure_future(collect_changes(changes, 1))
            done, _ = await asyncio.wait({change_task}, timeout=0.3)
            api_relay.restore()
            assert not done
            assert await change_task == [("SYNCED", "")]

    run_through_relay(cluster, api_relay, check_changes)


class RecordingObserver(StreamObserver):
    """Stream observer that records its notifications."""

    def __init__(self) -> None:
        self.notifications: list[str] = []

    def on_listed(self) -> None:
        self.notifications.append("listed")

    def on_watch_opened(self) -> None:
        self.notifications.append("opened")

    def on_watch_closed(self) -> None:
        self.notifications.append("closed")

    def on_failed(self, error: ApiError) -> None:
        self.notifications.append(f"failed {error.status}")


class ApiWithBreakingWatch(Api):
    """API client whose first watch breaks after one object."""

    is_first_watch = True

    async def watch(self, path: str, **options: Any) -> AsyncIterator[tuple[str, Object]]:
        watch: Any = super().watch(path, **options)
        async with aclosing(watch) as changes:
            async for change in changes:
                yield change
                if self.is_first_watch:
                    self.is_first_watch = False
                    raise build_api_error(503, {"message": "broken"})


class ApiWithFailures(Api):
    """API client whose next list and watch requests fail with the given status codes."""

    list_failures: ClassVar[list[int]] = []
    watch_failures: ClassVar[list[int]] = []
    list_count = 0
    """Number of sent list requests."""

    async def list(self, path: str, **options: Any) -> Object:
        self.list_count += 1
        if self.list_failures:
            raise build_api_error(status := self.list_failures.pop(0), {"message": f"no: {status}"})
        return await super().list(path, **options)

    async def watch(self, path: str, **options: Any) -> AsyncIterator[tuple[str, Object]]:
        if self.watch_failures:
            raise build_api_error(status := self.watch_failures.pop(0), {"message": f"no: {status}"})
        watch: Any = super().watch(path, **options)
        async with aclosing(watch) as changes:
            async for change in changes:
                yield change


@pytest.mark.parametrize("status", [400, 401, 403, 409, 429, 500, 503])
def test_rejected_list_and_watch_requests_are_retried(
    cluster: LocalCluster, api_relay: TcpRelay, namespace: str, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    """Check that failures are reported to the stream observer and retried, and that no change is lost."""
    observer = RecordingObserver()

    async def check_changes(api: Api) -> None:
        assert isinstance(api, ApiWithFailures)
        api.list_failures[:], api.watch_failures[:] = [status, status], [status, status]
        path, selector = get_configmaps_query(namespace)
        async with aclosing(follow(api, path, observer=observer, **selector)) as changes:
            assert await collect_changes(changes, 1) == [("SYNCED", "")]
            apply_configmap(cluster, namespace, "one")
            assert await collect_changes(changes, 1) == [("ADDED", "one")]

    run_through_relay(cluster, api_relay, check_changes, ApiWithFailures)

    # After a 400 response to a watch request, the client lists the objects again.
    failure, watch_count = f"failed {status}", 1 if status == 400 else 2
    failures_and_lists = [
        notification for notification in observer.notifications if notification not in ("opened", "closed")
    ]
    assert failures_and_lists == [failure, failure, "listed", *[failure] * watch_count]
    assert observer.notifications.count("opened") == observer.notifications.count("closed") >= watch_count
    assert len([line for line in caplog.messages if line.startswith("no: ")]) == 1


def test_watch_backoff_grows_across_alternating_errors(
    cluster: LocalCluster, api_relay: TcpRelay, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that the backoff grows even if different errors alternate, and that each error is logged once.

    A load balancer with two failing servers may return alternating errors.
    """

    async def check_changes(api: Api) -> None:
        assert isinstance(api, ApiWithFailures)
        api.list_failures[:], start_time = [503, 500, 503, 500], time.monotonic()
        async with aclosing(follow(api, get_configmaps_query(namespace)[0])) as changes:
            await anext(changes)
        assert time.monotonic() - start_time >= MIN_BACKOFF_SECONDS * (1 + 2 + 4 + 8)

    run_through_relay(cluster, api_relay, check_changes, ApiWithFailures)
    assert sorted(line[:7] for line in caplog.messages if line.startswith("no: ")) == ["no: 500", "no: 503"]


def test_rejected_list_request_raises_without_observer(
    cluster: LocalCluster, api_relay: TcpRelay, namespace: str
) -> None:
    async def check_changes(api: Api) -> None:
        assert isinstance(api, ApiWithFailures)
        api.list_failures[:] = [403]
        with pytest.raises(Denied):
            await anext(follow(api, get_configmaps_query(namespace)[0]))

    run_through_relay(cluster, api_relay, check_changes, ApiWithFailures)


def test_only_transformed_objects_are_yielded_and_compared(
    cluster: LocalCluster, api_relay: TcpRelay, namespace: str, widgets_path: str
) -> None:
    """Check that `follow` yields only transformed objects, even for a deletion that a new list request reveals."""
    observer = RecordingObserver()

    def keep_identity(manifest: Object) -> Object:
        return {"metadata": {name: manifest["metadata"][name] for name in ("name", "uid", "resourceVersion")}}

    def apply_widget(name: str) -> None:
        metadata = {"name": name, "namespace": namespace}
        body = {"apiVersion": "following.example.com/v1", "kind": "Widget", "metadata": metadata, "x": "1"}
        apply_object(cluster, f"{widgets_path}/{name}", body)

    apply_widget("one")

    async def check_changes(api: Api) -> None:
        assert isinstance(api, ApiWithExpiredVersion)
        async with aclosing(follow(api, widgets_path, transform=keep_identity, observer=observer)) as changes:
            collected = [await anext(changes), await anext(changes)]
            api_relay.cut()
            delete_object(cluster, f"{widgets_path}/one")
            apply_widget("two")
            api.use_expired_version = True
            api_relay.restore()
            collected += [await asyncio.wait_for(anext(changes), CHANGE_TIMEOUT_SECONDS) for _ in range(2)]
            apply_widget("three")
            collected.append(await asyncio.wait_for(anext(changes), CHANGE_TIMEOUT_SECONDS))

        assert [change.change_type for change in collected] == ["ADDED", "SYNCED", "DELETED", "ADDED", "ADDED"]
        assert all(change.object.keys() == {"metadata"} for change in collected)
        assert observer.notifications.count("listed") == 2

    run_through_relay(cluster, api_relay, check_changes, ApiWithExpiredVersion)
