"""Tests for the confirmation dialog's preview, and for the API server's warnings and denials in it (NMO-18)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests
from click.testing import CliRunner

from console.cli import cli
from console.web.maintenance_views import MAX_PREVIEWED_NODES
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.quorum import CONTROL_PLANE_LABELS
from kube.nodes import build_node_path
from localcluster import access
from localcluster.admission.webhook import COMPONENT_DIR, Webhook
from localcluster.processes import wait_until_ready
from tests.chain.environment import EventChainEnvironment
from tests.console.web.callers import FormSession, wait_for_node_page
from tests.console.web.site import Site
from tests.proofs import proves

WEBHOOK_CONFIGURATIONS_PATH = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
UNREACHABLE_WEBHOOK = {
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
"""Configuration of an admission webhook whose server does not run."""
BARE_POD_WARNING = "no controller will recreate 1 pod after the eviction: "


@pytest.fixture(scope="module")
def webhook_environment(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EventChainEnvironment]:
    """Yield the cluster with the admission webhook installed; other tests use the cluster without the webhook."""
    with Webhook(site.environment.cluster, tmp_path_factory.mktemp("webhook")):
        yield site.environment
    site.environment.cluster.kubectl(
        "delete", "-f", COMPONENT_DIR / "webhook.yaml", "-f", COMPONENT_DIR / "policy.yaml"
    )


@pytest.fixture
def form_session(site: Site) -> Iterator[FormSession]:
    with requests.Session() as session:
        yield FormSession(site, session)


@pytest.mark.slow
@proves("NMO-18", "OSV-7")
def test_dialog_shows_warnings_before_any_change(
    webhook_environment: EventChainEnvironment, form_session: FormSession
) -> None:
    node = wait_for_node_page(form_session.site, webhook_environment.create_node("foreseen-1"))
    webhook_environment.create_pods(node, 1)

    dialog = form_session.post("/start", node)

    assert dialog.status_code == 200
    assert BARE_POD_WARNING in dialog.text
    assert webhook_environment.client.list(MEDIK8S.path, field_selector=f"spec.nodeName={node}")["items"] == []


@proves("OSV-7")
def test_dialog_shows_preview_of_pods(webhook_environment: EventChainEnvironment, form_session: FormSession) -> None:
    """Check that the dialog shows the counts and the blocking PDB, as `kubectl maintenance preview` does."""
    node, namespace = webhook_environment.create_node("foreseen-5"), webhook_environment.create_namespace()
    webhook_environment.create_pods(node, 2, namespace=namespace, labels={"app": "db"})
    webhook_environment.create_budget(namespace, {"app": "db"}, name="db", disruptions_allowed=0, minAvailable=2)
    webhook_environment.create_pods(node, 1)
    wait_for_node_page(form_session.site, node)

    dialog = form_session.post("/start", node).text

    assert "<li>1 pod leaves now, 2 pods are blocked</li>" in dialog
    assert "<li>2 pods will block the drain: budget db needs 2 healthy pods and has 2: " in dialog
    assert dialog.count("no controller will recreate 1 pod after the eviction: ") <= 1


@proves("OSV-7")
def test_dialog_warns_that_end_of_maintenance_uncordons_cordoned_node(
    webhook_environment: EventChainEnvironment, form_session: FormSession
) -> None:
    node = webhook_environment.create_node("foreseen-6")
    webhook_environment.client.patch(build_node_path(node), {"spec": {"unschedulable": True}})
    wait_for_node_page(form_session.site, node)

    dialog = form_session.post("/start", node).text

    assert dialog.count(f"{node}&#34; is already cordoned, and the end of the maintenance uncordons it") == 1


@proves("NMO-18", "NMO-23")
def test_dialog_excludes_denied_nodes(webhook_environment: EventChainEnvironment, form_session: FormSession) -> None:
    """Check that the dialog excludes a node whose drain would break etcd's quorum, and includes a worker node."""
    members = [webhook_environment.create_node(f"member-{number}") for number in (1, 2)]
    worker = webhook_environment.create_node("foreseen-2")
    for name in members:
        webhook_environment.client.patch(build_node_path(name), {"metadata": {"labels": {CONTROL_PLANE_LABELS[0]: ""}}})
    wait_for_node_page(form_session.site, worker)
    try:
        dialog = form_session.post("/start", members[0], worker)
        single_dialog = form_session.post("/start", members[0])
    finally:
        for name in members:
            webhook_environment.client.patch(
                build_node_path(name), {"metadata": {"labels": {CONTROL_PLANE_LABELS[0]: None}}}
            )

    assert f"disrupting node {members[0]} will violate etcd quorum" in dialog.text
    assert f"Take <strong>{worker}</strong> out of service?" in dialog.text
    assert single_dialog.status_code == 409


@pytest.mark.slow
@proves("NMO-18", "OSV-7")
def test_dialog_states_number_of_nodes_without_preview(
    webhook_environment: EventChainEnvironment, form_session: FormSession
) -> None:
    """Check that the dialog states how many nodes have no preview, because the number of previewed nodes is limited."""
    nodes = [webhook_environment.create_node(f"asked-{number}") for number in range(MAX_PREVIEWED_NODES + 2)]
    wait_for_node_page(form_session.site, nodes[-1])

    assert "No preview for the last 2 nodes" in form_session.post("/start", *nodes).text
    assert "No preview for" not in form_session.post("/start", *nodes[:-2]).text


@proves("NMO-18", "OSV-7")
def test_dialog_reports_failed_preview(webhook_environment: EventChainEnvironment, form_session: FormSession) -> None:
    """Check that the dialog reports a failed preview, and still offers the action.

    The preview fails because another webhook with `failurePolicy: Fail` does not respond.
    """
    node = webhook_environment.create_node("foreseen-4")
    wait_for_node_page(form_session.site, node)
    webhook_environment.client.create(WEBHOOK_CONFIGURATIONS_PATH, UNREACHABLE_WEBHOOK)
    message = f"cannot preview the maintenance of node &#34;{node}&#34;: "
    try:
        wait_until_ready("the failed preview", lambda: message in form_session.post("/start", node).text, [], 10)
    finally:
        webhook_environment.client.delete(
            f"{WEBHOOK_CONFIGURATIONS_PATH}/away",
            uid=webhook_environment.client.get(f"{WEBHOOK_CONFIGURATIONS_PATH}/away")["metadata"]["uid"],
        )


@proves("NMO-18")
def test_command_prints_warnings_to_stderr(webhook_environment: EventChainEnvironment) -> None:
    node = webhook_environment.create_node("foreseen-3")
    webhook_environment.create_pods(node, 1)
    kubeconfig = str(webhook_environment.cluster.ensure_kubeconfig(access.ADMIN))

    result = CliRunner().invoke(cli, ["--kubeconfig", kubeconfig, "start", node, "-o", "json"])
    CliRunner().invoke(cli, ["--kubeconfig", kubeconfig, "stop", node])

    assert result.exit_code == 0
    assert result.stderr.startswith(f"Warning: {BARE_POD_WARNING}")
    assert '"kind": "NodeMaintenance"' in result.stdout
