"""Tests of `follow` against a real API server, through a connection that a test can cut."""

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
from kube.client.api_errors import ApiError, Denied, NotFound, error_of
from kube.client.list_watch import FIRST_PAUSE, Change, Witness, follow
from kube.paths import Object
from localcluster import access
from localcluster.cluster import LocalCluster
from tests.eventing.local.tcp_relay import Cable

PATIENCE = 20.0  # seconds to wait for one change
Changes = AsyncGenerator[Change, None]


@pytest.fixture
def cable(cluster: LocalCluster) -> Iterator[Cable]:
    port = urlsplit(cluster.url).port
    assert port is not None
    one = Cable(port)
    yield one
    one.close()


@pytest.fixture
def namespace(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the name of a new namespace, and delete the namespace after the test."""
    name = f"following-{abs(hash(request.node.name)) % 10**8}"
    cluster.door().create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    remove(cluster, f"/api/v1/namespaces/{name}")


def apply(cluster: LocalCluster, path: str, body: Object) -> None:
    """Create or update the object at `path` by server-side apply."""
    query = {"fieldManager": "test", "force": "true"}
    door = cluster.door()
    door.run(door.api.request("PATCH", path, query=query, body=body, content_type=APPLY_PATCH))


def remove(cluster: LocalCluster, path: str) -> None:
    """Delete the object at `path`."""
    cluster.door().run(cluster.door().api.request("DELETE", path))


def follows(cluster: LocalCluster, cable: Cable, test: Callable[[Api], Awaitable[None]], kind: type[Api] = Api) -> None:
    """Run `test` with an API client whose connections go through `cable`."""
    kubeconfig = cable_kubeconfig(cluster, cable)

    async def run() -> None:
        api = await kind.connect(str(kubeconfig))
        try:
            await test(api)
        finally:
            await api.close()

    asyncio.run(run())


def cable_kubeconfig(cluster: LocalCluster, cable: Cable) -> Path:
    copy = cluster.directory / f"cable-{cable.port}.kubeconfig"
    return access.through(f"https://127.0.0.1:{cable.port}", cluster.kubeconfig, cluster.url, copy)


async def upcoming(changes: Changes, wanted: int) -> list[tuple[str, str]]:
    """Return the next changes as (kind, name)."""
    told: list[tuple[str, str]] = []
    for _ in range(wanted):
        change = await asyncio.wait_for(anext(changes), PATIENCE)
        told.append((change.kind, change.object["metadata"].get("name", "")))
    return told


def config_map(cluster: LocalCluster, namespace: str, name: str, **data: str) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}
    apply(cluster, f"/api/v1/namespaces/{namespace}/configmaps/{name}", body)


def paths(namespace: str) -> tuple[str, dict[str, Any]]:
    """Return path and selector of the namespace's ConfigMaps, without the one that every namespace has."""
    return f"/api/v1/namespaces/{namespace}/configmaps", {"fields": "metadata.name!=kube-root-ca.crt"}


def test_what_is_there_comes_first_then_every_change(cluster: LocalCluster, cable: Cable, namespace: str) -> None:
    """Yield existing objects, then SYNCED with the list's resourceVersion, then every change in order.

    Objects have their kind, and a deleted object has its last state.
    """
    config_map(cluster, namespace, "one")

    async def test(api: Api) -> None:
        path, only = paths(namespace)
        async with aclosing(follow(api, path, **only)) as changes:
            first = await anext(changes)
            synced = await anext(changes)
            config_map(cluster, namespace, "two", x="1")
            config_map(cluster, namespace, "two", x="2")
            remove(cluster, f"/api/v1/namespaces/{namespace}/configmaps/two")
            later = [await asyncio.wait_for(anext(changes), PATIENCE) for _ in range(3)]

        assert (first.kind, first.object["kind"], first.object["apiVersion"]) == ("ADDED", "ConfigMap", "v1")
        assert synced.kind == "SYNCED"
        assert int(synced.object["metadata"]["resourceVersion"]) > 0
        assert [change.kind for change in later] == ["ADDED", "MODIFIED", "DELETED"]
        versions = [int(change.object["metadata"]["resourceVersion"]) for change in later]
        assert versions == sorted(set(versions))
        assert later[2].object["data"] == {"x": "2"}

    follows(cluster, cable, test)


@pytest.mark.parametrize("refused", [[], [422], [403, 503]], ids=["known", "not known", "refused and away"])
def test_a_watch_brings_what_is_there_itself(
    cluster: LocalCluster, cable: Cable, namespace: str, refused: list[int]
) -> None:
    """KEP-3157: the watch yields each existing object once and then SYNCED, without a list.

    If the API server refuses such a watch, a list yields the existing objects.
    """
    config_map(cluster, namespace, "one")
    config_map(cluster, namespace, "two")

    async def test(api: Api) -> None:
        assert isinstance(api, Strict)
        api.watches[:] = refused[:1]
        api.lists[:] = refused[1:]
        path, only = paths(namespace)
        async with aclosing(follow(api, path, streamed=True, witness=Refused(), **only)) as changes:
            first = await upcoming(changes, 3)
            asked = api.asked
            config_map(cluster, namespace, "one", x="1")
            remove(cluster, f"/api/v1/namespaces/{namespace}/configmaps/two")
            later = await upcoming(changes, 2)

        assert sorted(first[:2]) == [("ADDED", "one"), ("ADDED", "two")]
        assert first[2] == ("SYNCED", "")
        assert later == [("MODIFIED", "one"), ("DELETED", "two")]
        assert asked == len(refused)

    follows(cluster, cable, test, Strict)


def test_a_stream_that_breaks_before_its_end_is_compared_with_a_list(
    cluster: LocalCluster, cable: Cable, namespace: str
) -> None:
    """Yield an object that was deleted after the break as DELETED, and repeat no object that was yielded before it."""
    config_map(cluster, namespace, "one")
    config_map(cluster, namespace, "two")

    async def test(api: Api) -> None:
        assert isinstance(api, Broken)
        path, only = paths(namespace)
        async with aclosing(follow(api, path, streamed=True, **only)) as changes:
            first = await upcoming(changes, 1)
            remove(cluster, f"/api/v1/namespaces/{namespace}/configmaps/one")
            rest = await upcoming(changes, 3)

        assert first == [("ADDED", "one")]
        assert rest == [("DELETED", "one"), ("ADDED", "two"), ("SYNCED", "")]

    follows(cluster, cable, test, Broken)


def test_without_initial_only_changes_come(cluster: LocalCluster, cable: Cable, namespace: str) -> None:
    """Yield no existing objects, but do yield their deletions."""
    config_map(cluster, namespace, "one")

    async def test(api: Api) -> None:
        path, only = paths(namespace)
        async with aclosing(follow(api, path, initial=False, **only)) as changes:
            synced = await upcoming(changes, 1)
            remove(cluster, f"/api/v1/namespaces/{namespace}/configmaps/one")
            assert synced == [("SYNCED", "")]
            assert await upcoming(changes, 1) == [("DELETED", "one")]

    follows(cluster, cable, test)


def test_a_broken_watch_is_resumed_without_loss_or_repetition(
    cluster: LocalCluster, cable: Cable, namespace: str
) -> None:
    """Yield the changes that happened while the connection was cut once each, in order."""
    config_map(cluster, namespace, "one")

    async def test(api: Api) -> None:
        path, only = paths(namespace)
        async with aclosing(follow(api, path, **only)) as changes:
            assert await upcoming(changes, 2) == [("ADDED", "one"), ("SYNCED", "")]
            config_map(cluster, namespace, "two")
            assert await upcoming(changes, 1) == [("ADDED", "two")]
            cable.cut()
            config_map(cluster, namespace, "three")
            remove(cluster, f"/api/v1/namespaces/{namespace}/configmaps/one")
            waiting = asyncio.ensure_future(upcoming(changes, 2))
            await asyncio.sleep(0)
            cable.mend()
            assert await waiting == [("ADDED", "three"), ("DELETED", "one")]

    follows(cluster, cable, test)


class Forgetful(Api):
    """API client that resumes the next watch from an expired resourceVersion if `forget` is set."""

    forget = False

    async def watch(
        self, path: str, *, version: str, fields: str = "", labels: str = ""
    ) -> AsyncIterator[tuple[str, Object]]:
        asked, self.forget = "1" if self.forget else version, False
        watch: Any = super().watch(path, version=asked, fields=fields, labels=labels)
        async with aclosing(watch) as changes:
            async for change in changes:
                yield change


CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: benches.following.example.com}
spec:
  group: following.example.com
  scope: Namespaced
  names: {kind: Bench, plural: benches, singular: bench}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""


@pytest.fixture
def benches(cluster: LocalCluster, namespace: str) -> Iterator[str]:
    """Yield the API path of a custom resource that was not served from the cluster's start.

    The API server's watch history of this kind starts with its CRD, so resourceVersion 1 is too old.
    """
    cluster.kubectl("apply", "-f", "-", input=CRD)
    cluster.await_kinds("benches.following.example.com")
    yield f"/apis/following.example.com/v1/namespaces/{namespace}/benches"
    cluster.kubectl("delete", "crd", "benches.following.example.com")


def test_after_a_410_the_difference_is_told(cluster: LocalCluster, cable: Cable, namespace: str, benches: str) -> None:
    """Yield deleted, recreated, changed and added objects once each, and unchanged objects not at all."""

    def bench(name: str, x: str) -> None:
        metadata = {"name": name, "namespace": namespace}
        body = {"apiVersion": "following.example.com/v1", "kind": "Bench", "metadata": metadata, "x": x}
        apply(cluster, f"{benches}/{name}", body)

    for name in ("same", "gone", "anew", "changed"):
        bench(name, "1")

    async def test(api: Api) -> None:
        assert isinstance(api, Forgetful)
        async with aclosing(follow(api, benches)) as changes:
            assert len(await upcoming(changes, 5)) == 5
            cable.cut()
            for name in ("gone", "anew"):
                remove(cluster, f"{benches}/{name}")
            for name in ("anew", "changed", "added"):
                bench(name, "2")
            api.forget = True
            cable.mend()
            told = await upcoming(changes, 5)
            bench("last", "1")
            last = await upcoming(changes, 1)

        assert set(told[:2]) == {("DELETED", "gone"), ("DELETED", "anew")}
        assert set(told[2:]) == {("ADDED", "anew"), ("MODIFIED", "changed"), ("ADDED", "added")}
        assert last == [("ADDED", "last")]
        assert not api.forget

    follows(cluster, cable, test, Forgetful)


def test_a_kind_that_is_not_served_is_the_callers_affair(cluster: LocalCluster, cable: Cable) -> None:
    """Raise `NotFound` if the kind is not served at the start."""

    async def test(api: Api) -> None:
        with pytest.raises(NotFound):
            await anext(follow(api, "/apis/example.com/v1/things"))

    follows(cluster, cable, test)


def test_an_api_server_that_is_away_at_first_is_waited_for(cluster: LocalCluster, cable: Cable, namespace: str) -> None:
    """Retry the first list until the API server is available."""
    cable.cut()

    async def test(api: Api) -> None:
        path, only = paths(namespace)
        async with aclosing(follow(api, path, **only)) as changes:
            first = asyncio.ensure_future(upcoming(changes, 1))
            done, _ = await asyncio.wait({first}, timeout=0.3)
            cable.mend()
            assert not done
            assert await first == [("SYNCED", "")]

    follows(cluster, cable, test)


class Refused(Witness):
    """Stream observer that records its notifications."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def listed(self) -> None:
        self.told.append("listed")

    def opened(self) -> None:
        self.told.append("opened")

    def closed(self) -> None:
        self.told.append("closed")

    def failed(self, error: ApiError) -> None:
        self.told.append(f"failed {error.status}")


class Broken(Api):
    """API client whose first watch breaks after its first object."""

    breaks = True

    async def watch(self, path: str, **options: Any) -> AsyncIterator[tuple[str, Object]]:
        watch: Any = super().watch(path, **options)
        async with aclosing(watch) as changes:
            async for change in changes:
                yield change
                if self.breaks:
                    self.breaks = False
                    raise error_of(503, {"message": "broken"})


class Strict(Api):
    """API client whose next lists and watches fail with the given status codes."""

    lists: ClassVar[list[int]] = []
    watches: ClassVar[list[int]] = []
    asked = 0
    """Number of list requests."""

    async def list(self, path: str, **options: Any) -> Object:
        self.asked += 1
        if self.lists:
            raise error_of(status := self.lists.pop(0), {"message": f"no: {status}"})
        return await super().list(path, **options)

    async def watch(self, path: str, **options: Any) -> AsyncIterator[tuple[str, Object]]:
        if self.watches:
            raise error_of(status := self.watches.pop(0), {"message": f"no: {status}"})
        watch: Any = super().watch(path, **options)
        async with aclosing(watch) as changes:
            async for change in changes:
                yield change


@pytest.mark.parametrize("status", [400, 401, 403, 409, 429, 500, 503])
def test_a_refused_list_and_a_refused_watch_are_tried_again(
    cluster: LocalCluster, cable: Cable, namespace: str, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    """Retry with a stream observer, which receives each failure; log the message once, and lose no change."""
    witness = Refused()

    async def test(api: Api) -> None:
        assert isinstance(api, Strict)
        api.lists[:], api.watches[:] = [status, status], [status, status]
        path, only = paths(namespace)
        async with aclosing(follow(api, path, witness=witness, **only)) as changes:
            assert await upcoming(changes, 1) == [("SYNCED", "")]
            config_map(cluster, namespace, "one")
            assert await upcoming(changes, 1) == [("ADDED", "one")]

    follows(cluster, cable, test, Strict)

    refused, watches = f"failed {status}", 1 if status == 400 else 2  # after a 400, the client lists again
    said = [told for told in witness.told if told not in ("opened", "closed")]
    assert said == [refused, refused, "listed", *[refused] * watches]
    assert witness.told.count("opened") == witness.told.count("closed") >= watches
    assert len([line for line in caplog.messages if line.startswith("no: ")]) == 1


def test_failures_that_alternate_are_tried_in_pauses_that_grow(
    cluster: LocalCluster, cable: Cable, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Increase the backoff across different errors, and log each error once.

    A load balancer with two failing servers may return such errors.
    """

    async def test(api: Api) -> None:
        assert isinstance(api, Strict)
        api.lists[:], began = [503, 500, 503, 500], time.monotonic()
        async with aclosing(follow(api, paths(namespace)[0])) as changes:
            await anext(changes)
        assert time.monotonic() - began >= FIRST_PAUSE * (1 + 2 + 4 + 8)

    follows(cluster, cable, test, Strict)
    assert sorted(line[:7] for line in caplog.messages if line.startswith("no: ")) == ["no: 500", "no: 503"]


def test_without_a_witness_a_refused_list_is_the_callers_affair(
    cluster: LocalCluster, cable: Cable, namespace: str
) -> None:
    async def test(api: Api) -> None:
        assert isinstance(api, Strict)
        api.lists[:] = [403]
        with pytest.raises(Denied):
            await anext(follow(api, paths(namespace)[0]))

    follows(cluster, cable, test, Strict)


def test_only_what_is_kept_is_given_and_compared(
    cluster: LocalCluster, cable: Cable, namespace: str, benches: str
) -> None:
    """Yield only what `keep` returns, also for a deletion that a new list shows; notify the observer of that list."""
    witness = Refused()

    def name_only(item: Object) -> Object:
        return {"metadata": {name: item["metadata"][name] for name in ("name", "uid", "resourceVersion")}}

    def bench(name: str) -> None:
        metadata = {"name": name, "namespace": namespace}
        body = {"apiVersion": "following.example.com/v1", "kind": "Bench", "metadata": metadata, "x": "1"}
        apply(cluster, f"{benches}/{name}", body)

    bench("one")

    async def test(api: Api) -> None:
        assert isinstance(api, Forgetful)
        async with aclosing(follow(api, benches, keep=name_only, witness=witness)) as changes:
            told = [await anext(changes), await anext(changes)]
            cable.cut()
            remove(cluster, f"{benches}/one")
            bench("two")
            api.forget = True
            cable.mend()
            told += [await asyncio.wait_for(anext(changes), PATIENCE) for _ in range(2)]
            bench("three")
            told.append(await asyncio.wait_for(anext(changes), PATIENCE))

        assert [change.kind for change in told] == ["ADDED", "SYNCED", "DELETED", "ADDED", "ADDED"]
        assert all(change.object.keys() == {"metadata"} for change in told)
        assert witness.told.count("listed") == 2

    follows(cluster, cable, test, Forgetful)
