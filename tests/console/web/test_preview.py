"""Tests of the API server's warnings and denials in the confirmation dialog and in the command's output (NMO-18)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests
from click.testing import CliRunner

from console.cli import commands
from console.web.maintenance_views import MOST_FORESEEN
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.quorum import CONTROL_PLANE
from kube.nodes import node_path
from localcluster import access
from localcluster.admission.webhook import COMPONENT, Webhook
from localcluster.processes import await_ready
from tests.chain.environment import Scene
from tests.console.web.callers import Form
from tests.console.web.site import Site
from tests.proofs import proves

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
AWAY = {
    "metadata": {"name": "away"},
    "webhooks": [
        {
            **{"name": "away.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None"},
            **{"failurePolicy": "Fail", "clientConfig": {"url": "https://127.0.0.1:1/"}},
            "rules": [
                {
                    **{"apiGroups": [MEDIK8S.api_version.split("/")[0]], "apiVersions": ["*"]},
                    **{"operations": ["CREATE"], "resources": ["nodemaintenances"]},
                }
            ],
        }
    ],
}
"""Configuration of a webhook that has no server."""
BARE = "1 pod that no controller makes again will be gone for good: "


@pytest.fixture(scope="module")
def guarded(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Yield the site's cluster with the admission webhook, which other tests do not use."""
    with Webhook(site.scene.cluster, tmp_path_factory.mktemp("webhook")):
        yield site.scene
    site.scene.cluster.kubectl("delete", "-f", COMPONENT / "webhook.yaml", "-f", COMPONENT / "policy.yaml")


@pytest.fixture
def form(site: Site) -> Iterator[Form]:
    with requests.Session() as session:
        yield Form(site, session)


@pytest.mark.slow
@proves("NMO-18", "OSV-7")
def test_the_window_warns_before_anything_is_changed(guarded: Scene, form: Form) -> None:
    node = guarded.node("foreseen-1")
    guarded.pods(node, 1)

    asked = form.post("/start", node)

    assert asked.status_code == 200
    assert BARE in asked.text
    assert guarded.admin.list(MEDIK8S.path, fields=f"spec.nodeName={node}")["items"] == []


@proves("NMO-18", "NMO-23")
def test_the_window_leaves_out_who_would_be_refused(guarded: Scene, form: Form) -> None:
    """Check that the dialog excludes a node that etcd needs, with the reason, and includes the other node."""
    members = [guarded.node(f"member-{number}") for number in (1, 2)]
    worker = guarded.node("foreseen-2")
    for name in members:
        guarded.admin.patch(node_path(name), {"metadata": {"labels": {CONTROL_PLANE[0]: ""}}})
    shown = form.site.url("/nodes", q=worker)
    await_ready("the list", lambda: f"/nodes/{worker}" in form.session.get(shown, timeout=10).text, [])
    try:
        asked = form.post("/start", members[0], worker)
        alone = form.post("/start", members[0])
    finally:
        for name in members:
            guarded.admin.patch(node_path(name), {"metadata": {"labels": {CONTROL_PLANE[0]: None}}})

    assert f"disrupting node {members[0]} will violate etcd quorum" in asked.text
    assert f"Take <strong>{worker}</strong> out of service?" in asked.text
    assert alone.status_code == 409


@pytest.mark.slow
@proves("NMO-18", "OSV-7")
def test_the_window_says_what_it_did_not_ask(guarded: Scene, form: Form) -> None:
    """Check that the dialog states how many nodes exceed the limit of previews."""
    nodes = [guarded.node(f"asked-{number}") for number in range(MOST_FORESEEN + 2)]
    shown = form.site.url("/nodes", q=nodes[-1])
    await_ready("the list", lambda: f"/nodes/{nodes[-1]}" in form.session.get(shown, timeout=10).text, [])

    assert "for the last 2 nodes was not asked" in form.post("/start", *nodes).text
    assert "was not asked" not in form.post("/start", *nodes[:-2]).text


@proves("NMO-18", "OSV-7")
def test_the_window_says_that_it_could_not_ask(guarded: Scene, form: Form) -> None:
    """Check that the dialog reports a failed preview and still offers the action.

    The preview fails because another webhook with `failurePolicy: Fail` does not answer.
    """
    node = guarded.node("foreseen-4")
    shown = form.site.url("/nodes", q=node)
    await_ready("the list", lambda: f"/nodes/{node}" in form.session.get(shown, timeout=10).text, [])
    guarded.admin.create(WEBHOOKS, AWAY)
    said = f"what it means for {node} could not be asked: "
    try:
        await_ready("the webhook to be asked", lambda: said in form.post("/start", node).text, [], 10)
    finally:
        guarded.admin.delete(f"{WEBHOOKS}/away", uid=guarded.admin.get(f"{WEBHOOKS}/away")["metadata"]["uid"])


@proves("NMO-18")
def test_the_command_shows_the_same_beside_its_output(guarded: Scene) -> None:
    node = guarded.node("foreseen-3")
    guarded.pods(node, 1)
    kubeconfig = str(guarded.cluster.kubeconfig_for(access.ADMIN))

    done = CliRunner().invoke(commands, ["--kubeconfig", kubeconfig, "start", node, "-o", "json"])
    CliRunner().invoke(commands, ["--kubeconfig", kubeconfig, "stop", node])

    assert done.exit_code == 0
    assert done.stderr.startswith(f"Warning: {BARE}")
    assert '"kind": "NodeMaintenance"' in done.stdout
