"""Tests for `events` with the cluster's journal, which the console serves through the API server's proxy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner, Result
from cloudevents.core.v1.event import CloudEvent

from console.cli import cli
from console.terminal.cluster_journal import ClusterJournal
from console.terminal.event_follower import EventFollower
from eventing import events
from eventing.dead_letters import DeadLetter, add_dead_letter_extensions
from eventing.events import ObjectReference, build_event
from eventing.journal.entries import Query
from eventing.journal.store import Attempt, Journal
from eventing.journal.wire import ENTRIES_PATH, NUMBERS_PATH, READER, TOKEN_HEADER, encode_query
from kube.client.access_reviews import Permission
from kube.client.sync_client import SyncClient
from kube.maintenance.groups import MEDIK8S
from localcluster.access import NAMESPACE, UNPRIVILEGED
from localcluster.cluster import LocalCluster
from localcluster.processes import wait_until_ready
from tests.console.conftest import ROOT
from tests.console.journal_service import JournalService, request_token, run_journal_service
from tests.console.permissions import create_user, make_username, wait_for_permission

MAINTENANCE = ObjectReference(MEDIK8S.api_version, "node-1", "uid-1")
START_TIME = datetime.now(timezone.utc) - timedelta(hours=1)
BEGUN = build_event(events.MAINTENANCE_BEGUN, "begin", MAINTENANCE, "node-1")
CORDONED = build_event(events.NODE_CORDONED, "cordon", MAINTENANCE, "node-1", cause=BEGUN)
RULE_ADDED = CloudEvent(
    {"id": "rule", "source": "/apis", "type": events.RESOURCE_ADDED, "kind": "MutexRule"},
    {"metadata": {"name": "disks", "uid": "uid-2"}, "spec": {"env": [{"name": "PASSWORD", "value": "secret"}]}},
)
LIST_MAINTENANCES = Permission("list", "nodemaintenances", MEDIK8S.api_version.partition("/")[0])
RunEvents = Callable[..., Result]


@pytest.fixture(scope="module")
def journal_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a journal with three events and a failed attempt."""
    file = tmp_path_factory.mktemp("recorded") / "journal.db"
    with closing(Journal(file)) as journal:
        for seconds, event in enumerate((BEGUN, CORDONED, RULE_ADDED)):
            journal.write_event(event, START_TIME + timedelta(seconds=seconds))
        key = (BEGUN.get_source(), BEGUN.get_id())
        journal.write_attempts([Attempt(*key, "cordon", START_TIME, 0.5, 503, error="the API server is unavailable")])
    return file


@pytest.fixture(scope="module")
def service(
    served_cluster: LocalCluster, journal_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JournalService]:
    """Yield a console that serves the journal, with the ServiceAccount and permissions from the manifests."""
    with run_journal_service(served_cluster, tmp_path_factory.mktemp("service"), "--journal", journal_file) as running:
        yield running


@pytest.fixture(scope="module")
def viewer_kubeconfig(served_cluster: LocalCluster) -> Path:
    """Return the kubeconfig of a user who has only the ClusterRole `maintenance-viewer`."""
    kubeconfig = create_user(served_cluster, "journal-viewer", "maintenance-viewer")
    wait_for_permission(served_cluster.get_client(), make_username("journal-viewer"), LIST_MAINTENANCES)
    return kubeconfig


def run_command(kubeconfig: Path, *args: str) -> Result:
    return CliRunner().invoke(cli, ["--kubeconfig", str(kubeconfig), *args], prog_name="kubectl maintenance")


@pytest.fixture
def run_events(service: JournalService, viewer_kubeconfig: Path) -> RunEvents:
    """Return a function that runs `events` for the cluster's journal with a viewer's permissions."""
    return lambda *args: run_command(viewer_kubeconfig, "events", "--journal", "cluster", *args)


@pytest.fixture
def viewer_client(service: JournalService, viewer_kubeconfig: Path) -> Iterator[SyncClient]:
    with closing(SyncClient(str(viewer_kubeconfig))) as client:
        yield client


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("-o", "tree"),
        ("-o", "jsonl", "--node", "node-1"),
        ("-o", "json", "--maintenance", "node-1"),
        ("-o", "json", "--failed"),
        ("-o", "json", "--type", "node.cordoned", "--since", "2h", "--until", "1m"),
        ("--limit", "1"),
    ],
    ids=" ".join,
)
def test_viewer_reads_same_events_as_from_file(
    run_events: RunEvents, journal_file: Path, options: tuple[str, ...]
) -> None:
    """Check that each filter and output format gives a viewer the same output as the journal's file."""
    local = CliRunner().invoke(cli, ["events", "--journal", str(journal_file), *options])

    result = run_events(*options)

    assert result.exit_code == 0, result.output
    assert local.stdout.strip()
    assert omit_new_values(result.output) == omit_new_values(local.output)


def omit_new_values(output: str) -> str:
    """Remove the ids and times of the attempt events, because each export creates new ones."""
    attempts = r'"id": "[^"]+", ("source": "https://nodemaintenance.dev/attempts", "type": "[^"]+"), "time": "[^"]+"'
    return re.sub(attempts, r"\1", output)


def test_values_of_environment_variables_are_redacted(run_events: RunEvents) -> None:
    """Check that the journal API redacts the values of environment variables, as the console's pages do."""
    result = run_events("-o", "json", "--type", "dev.knative.apiserver.resource.add")

    (entry,) = json.loads(result.stdout)
    assert entry["event"]["data"]["metadata"]["name"] == "disks"
    assert "secret" not in result.stdout


def test_deadletters_command_reads_journal_of_cluster(
    service: JournalService, viewer_kubeconfig: Path, journal_file: Path
) -> None:
    """Check that the note about open dead letters names the console's page, because `redrive` needs a local journal."""
    empty = run_command(viewer_kubeconfig, "deadletters", "--journal", "cluster")
    with closing(Journal(journal_file)) as journal:
        event = CloudEvent({"id": "undelivered", "source": "/s", "type": events.MAINTENANCE_BEGUN}, {})
        journal.write_event(add_dead_letter_extensions(event, DeadLetter("http://away/cordon", 503, "away")))

    result = run_command(viewer_kubeconfig, "deadletters", "--journal", "cluster")

    assert (empty.exit_code, empty.output) == (0, "No dead letters found.\n")
    assert "cordon" in result.stdout.splitlines()[1]
    assert result.stderr == "To deliver one again or to close it: open the page Dead letters of the console\n"


def test_journal_of_cluster_is_default_if_no_journal_is_configured(
    service: JournalService, viewer_kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that `events` reads the cluster's journal if no option, variable or file selects another journal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JOURNAL", raising=False)

    result = run_command(viewer_kubeconfig, "events", "-o", "json", "--node", "node-1")

    assert len(json.loads(result.stdout)) == 2, result.output


def test_impersonated_user_without_token_reads_journal(service: JournalService, served_cluster: LocalCluster) -> None:
    """Check that a user without a token, for example with a client certificate, can read the journal."""
    binding = "impersonated-viewer"
    served_cluster.kubectl("create", "clusterrolebinding", binding, "--clusterrole=maintenance-viewer", "--user=ida")
    try:
        wait_for_permission(served_cluster.get_client(), "ida", LIST_MAINTENANCES)
        arguments = ("events", "--journal", "cluster", "-o", "json", "--node", "node-1", "--as=ida")
        result = run_command(served_cluster.kubeconfig, *arguments)
    finally:
        served_cluster.kubectl("delete", "clusterrolebinding", binding)

    assert len(json.loads(result.stdout)) == 2, result.output


def test_client_reads_all_pages_of_journal(viewer_client: SyncClient, journal_file: Path) -> None:
    """Check that a query without a limit returns all entries, although the API returns only two entries per page."""
    cluster_journal = ClusterJournal(viewer_client, NAMESPACE, page_size=2)

    with closing(Journal(journal_file)) as journal:
        expected = journal.list_event_numbers(Query())
    assert cluster_journal.list_event_numbers(Query()) == expected
    assert [entry.seq for entry in cluster_journal.iter_entries(Query())] == list(expected)
    ids = (CORDONED.get_id(), *(f"unknown-{number}" for number in range(500)), BEGUN.get_id())
    assert [entry.event.get_id() for entry in cluster_journal.select(Query(ids=ids))] == [
        BEGUN.get_id(),
        CORDONED.get_id(),
    ]


def test_follow_shows_later_recorded_event_once(
    viewer_client: SyncClient, served_cluster: LocalCluster, journal_file: Path
) -> None:
    """Check that `--follow` shows an event exactly once if the event is recorded after the first read."""
    follower = EventFollower(ClusterJournal(viewer_client, NAMESPACE), Query(node="node-2"), shows_ticks=True)
    first_lines = list(follower.read_lines())
    reference = ObjectReference(MEDIK8S.api_version, "node-2", "uid-3")

    with closing(Journal(journal_file)) as journal:
        journal.write_event(build_event(events.NODE_CORDONED, "cordon", reference, "node-2"))
    second_lines, third_lines = list(follower.read_lines()), list(follower.read_lines())

    assert len(first_lines) == 1
    assert first_lines[0].startswith("TIME")
    assert [line.split()[2:4] for line in second_lines] == [["node.cordoned", "node-2"]]
    assert third_lines == []


def test_error_about_missing_permission_names_cluster_role(
    service: JournalService, served_cluster: LocalCluster
) -> None:
    unprivileged = run_command(served_cluster.ensure_kubeconfig(UNPRIVILEGED), "events", "--journal", "cluster")

    assert unprivileged.exit_code == 2
    assert 'User "unprivileged" cannot create resource "serviceaccounts/token"' in unprivileged.output
    assert unprivileged.output.endswith("ask an administrator for the ClusterRole maintenance-viewer\n")


def test_reading_journal_requires_permission_for_proxy(service: JournalService, served_cluster: LocalCluster) -> None:
    """Check that the API server denies the request of a user who may request the token but not use the proxy."""
    client, rbac = served_cluster.get_client(), "/apis/rbac.authorization.k8s.io/v1"
    rule = {"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": [READER], "verbs": ["create"]}
    role = client.create(f"{rbac}/clusterroles", {"metadata": {"name": "only-tokens"}, "rules": [rule]})
    kubeconfig = create_user(served_cluster, "token-requester", "only-tokens", "view")
    wait_for_permission(client, make_username("token-requester"), LIST_MAINTENANCES)

    result = run_command(kubeconfig, "events", "--journal", "cluster")
    client.delete(f"{rbac}/clusterroles/only-tokens", uid=role["metadata"]["uid"])

    assert result.exit_code == 2
    assert 'cannot get resource "services/proxy"' in result.output


def test_missing_console_is_reported_with_remedy(served_cluster: LocalCluster, viewer_kubeconfig: Path) -> None:
    result = run_command(viewer_kubeconfig, "events", "--journal", "cluster", "--namespace", "default")

    assert result.exit_code == 2
    assert f'serviceaccounts "{READER}" not found' in result.output
    assert 'the component "console" of this version runs in the namespace "default" (with Helm' in result.output


def test_command_reads_large_events_despite_response_size_limit(
    run_events: RunEvents, served_cluster: LocalCluster, service: JournalService, journal_file: Path
) -> None:
    """Check that the command reads many large events, while a single request for all of them is rejected."""
    events_of_flood = [
        CloudEvent({"id": f"flood-{number}", "source": "/test", "type": "flood"}, {"text": "x" * 1_500_000})
        for number in range(6)
    ]
    with closing(Journal(journal_file)) as journal:
        journal.write_events((event, START_TIME) for event in events_of_flood)
        numbers = journal.list_event_numbers(Query(types=("flood",)))
    headers = {TOKEN_HEADER: request_token(served_cluster)}

    response = requests.get(
        f"{service.url}{ENTRIES_PATH}", {"query": encode_query(Query(seqs=numbers))}, headers=headers, timeout=10
    )
    result = run_events("--type", "flood", "-o", "json")

    assert (response.status_code, len(numbers)) == (400, 6)
    assert "request fewer at once" in response.json()["message"]
    assert [entry["event"]["id"] for entry in json.loads(result.stdout)] == [
        event.get_id() for event in events_of_flood
    ]


def test_client_replaces_expired_token_once(viewer_client: SyncClient) -> None:
    """Check that the client requests a new token if its token has expired, for example while a laptop was suspended."""
    cluster_journal = ClusterJournal(viewer_client, NAMESPACE)
    cluster_journal._token = "expired"  # noqa: S105 - not a secret

    assert len(cluster_journal.list_event_numbers(Query(node="node-1"))) == 2


@pytest.mark.slow
def test_follow_continues_after_journal_was_unavailable(
    service: JournalService, viewer_kubeconfig: Path, journal_file: Path, tmp_path: Path
) -> None:
    """Check that `--follow` reports only once that the journal is unavailable, and shows later events afterwards."""
    output, problems = tmp_path / "stdout", tmp_path / "stderr"
    arguments = ("--kubeconfig", viewer_kubeconfig, "events", "--journal", "cluster", "--follow", "--node", "node-3")
    with output.open("w") as stdout, problems.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "console.cli", *arguments], cwd=ROOT, stdout=stdout, stderr=stderr
        )
    try:
        wait_until_ready("the first read", lambda: output.read_text().startswith("TIME"), [], 30)
        service.stop()
        wait_until_ready("the note", lambda: "trying again until Ctrl-C." in problems.read_text(), [], 30)
        service.start()
        with closing(Journal(journal_file)) as journal:
            journal.write_event(build_event(events.NODE_TAINTED, "taint", MAINTENANCE, "node-3"))
        wait_until_ready("the later event", lambda: "node.tainted" in output.read_text(), [], 40)
    finally:
        process.kill()
        process.wait()

    assert problems.read_text().count("trying again") == 1


def test_journal_api_serves_no_web_page(served_cluster: LocalCluster, service: JournalService) -> None:
    headers = {TOKEN_HEADER: request_token(served_cluster)}

    page = requests.get(f"{service.url}/nodes", headers=headers, timeout=10)

    assert page.status_code == 404
    assert page.json() == {
        "message": "this version of the console does not serve /nodes: install the version of the command"
    }


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ('{"color":"red"}', "does not know the filter color"),
        ('{"limit":10001}', "the limit is greater than 10000"),
        ('{"limit":true}', "limit is not of type int"),
        ('{"since":"yesterday"}', "not an ISO 8601 time"),
        ('{"limit":-1}', "limit is negative"),
        ("[]", "query is not a JSON object"),
        ("[" * 1200, "query is not JSON"),
    ],
)
def test_invalid_query_is_rejected(
    served_cluster: LocalCluster, service: JournalService, query: str, message: str
) -> None:
    """Check that the journal API rejects an unknown filter, for example of a newer command, instead of ignoring it."""
    headers = {TOKEN_HEADER: request_token(served_cluster)}

    response = requests.get(f"{service.url}{NUMBERS_PATH}", {"query": query}, headers=headers, timeout=10)

    assert response.status_code == 400
    assert message in response.json()["message"]
