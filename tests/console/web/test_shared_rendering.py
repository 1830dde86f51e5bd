"""Tests that parts of pages are rendered only once for all open pages that show them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any

import pytest
from flask import Flask, template_rendered

from console.web.app import create_app
from console.web.callers import identify_by_kubeconfig
from eventing.journal.entries import Attempt
from eventing.journal.store import Journal
from kube.client.sync_client import SyncClient
from tests.console.web.site import Site
from tests.console.web.test_stale_state import build_node_drained_event

VIEWERS = 3
VERSION_PATTERN = re.compile(r'name="version" value="([^"]+)"')


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journal]:
    """Yield a journal with one event."""
    with closing(Journal(tmp_path_factory.mktemp("shared") / "journal.db")) as journal:
        journal.write_event(build_node_drained_event("shared-1"))
        yield journal


@pytest.fixture(scope="module")
def app(site: Site, journal: Journal) -> Iterator[Flask]:
    """Yield the console's Flask app in this process."""
    with closing(SyncClient(str(site.environment.cluster.kubeconfig))) as client:
        app = create_app(client, identify_by_kubeconfig(client.api), journal=journal)
        with closing(app.extensions["live"]):
            yield app


@contextmanager
def count_renderings(app: Flask) -> Iterator[Counter[str]]:
    """Yield the number of times that each template is rendered while the `with` block runs."""
    counts: Counter[str] = Counter()

    def record(_sender: Flask, template: Any, **_values: Any) -> None:
        counts[template.name] += 1

    with template_rendered.connected_to(record, app):
        yield counts


def read_stream(app: Flask, path: str) -> str:
    """Open an event stream as a page does, and return its first two messages, of which the first is a keepalive."""
    with closing(app.test_client().get(path)) as response:
        return b"".join(islice(response.iter_encoded(), 2)).decode()


@pytest.mark.parametrize(
    ("path", "template"),
    [
        ("/live/home", "overview.html"),
        ("/live/nodes?version=0", "rows_all.html"),
        ("/live/nodes/shared-1?version=0", "node_status.html"),
    ],
)
def test_open_pages_share_rendering_of_same_state(site: Site, app: Flask, path: str, template: str) -> None:
    """Check that several pages that show the same state render this state once."""
    watcher = app.extensions["live"]
    if "shared-1" not in watcher.get_state().nodes:
        site.environment.create_node("shared-1")
        assert watcher.wait_for_state(lambda state: "shared-1" in state.nodes, 20)

    with count_renderings(app) as counts, ThreadPoolExecutor(VIEWERS) as executor:
        streams = list(executor.map(lambda _: read_stream(app, path), range(VIEWERS)))

    versions = {version for stream in streams for version in re.findall(r"^id: (\d+)$", stream, re.MULTILINE)}
    assert len(versions) in range(1, VIEWERS)  # Another test's objects may cause a newer state in the meantime.
    assert counts[template] == len(versions)


def test_list_of_events_is_rendered_once_until_it_changes(app: Flask, journal: Journal) -> None:
    """Check that open pages share the rendered list of events, and that an unchanged list is not read again."""
    client, path = app.test_client(), "/events/tail?node=shared-1"
    with count_renderings(app) as counts:
        version = VERSION_PATTERN.findall(client.get("/events?node=shared-1").text)[0]
        pages = [client.get(path) for _ in range(VIEWERS)]
        unchanged = client.get(f"{path}&version={version}")

    assert counts["events_list.html"] == 1
    assert all("node.drained" in page.text for page in pages)
    assert unchanged.status_code == 204

    (entry,) = journal.select()
    source, event_id = entry.event.get_source(), entry.event.get_id()
    journal.write_attempts([Attempt(source, event_id, "status", entry.arrived, 0.02, 200)])
    changed = client.get(f"{path}&version={version}")

    assert changed.status_code == 200
    assert "status 200" in changed.text
