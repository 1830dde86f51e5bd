"""Tests for `kubectl maintenance certificates`: the list, which needs no permission for Secrets, and renewals."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from console.commands.certificates import format_relative_time
from functions.certificates.renewal import renew_all
from functions.certificates.settings import Settings
from kube.certificates import component_state, objects
from kube.certificates.components import COMPONENT_LABEL, COMPONENTS
from kube.certificates.objects import PRIVATE_KEY_ENTRY
from kube.client.sync_client import SyncClient
from kube.paths import DEFAULT_NAMESPACE, Object
from localcluster.access import UNPRIVILEGED
from localcluster.cluster import LocalCluster
from tests.console.conftest import RunCommand
from tests.console.terminal.test_output import run_on_terminal
from tests.proofs import proves

SECRETS_PATH, CONFIGMAPS_PATH = (
    objects.build_secrets_path(DEFAULT_NAMESPACE),
    objects.build_configmaps_path(DEFAULT_NAMESPACE),
)
CA_SECRET_NAME = COMPONENTS["macpool"].ca_secret_name


@pytest.fixture
def client_with_certificate(served_cluster: LocalCluster) -> Iterator[SyncClient]:
    """Create a certificate of the component `macpool`, which no other test uses, and yield an API client."""
    client = served_cluster.get_client()
    labels, names = {COMPONENT_LABEL: "macpool"}, {objects.DNS_NAMES_ANNOTATION: "pool.svc"}
    client.create(SECRETS_PATH, {"metadata": {"name": "pool", "labels": labels, "annotations": names}})
    run_renewal(client)
    yield client
    for path in (SECRETS_PATH, CONFIGMAPS_PATH):
        for obj in client.list(path, label_selector=f"{COMPONENT_LABEL}=macpool")["items"]:
            client.delete(f"{path}/{obj['metadata']['name']}", uid=obj["metadata"]["uid"])


def run_renewal(client: SyncClient) -> None:
    """Renew all certificates whose renewal is due, as the function `renew-certificates` does on every tick."""
    errors = client.run(renew_all(client.api, Settings(), datetime.now(timezone.utc))).errors
    assert errors == []


def list_certificates(run_command: RunCommand) -> dict[str, Object]:
    """Run `certificates`, and return a map from Secret name to certificate of the component `macpool`."""
    result = run_command("certificates", "-o", "json")
    assert result.exit_code == 0, result.output
    certificates = json.loads(result.stdout)["certificates"]
    return {certificate["secret"]: certificate for certificate in certificates if certificate["component"] == "macpool"}


@proves("OSV-20", "OSV-21")
def test_certificates_are_listed_with_serial_number_dates_and_next_renewal(
    client_with_certificate: SyncClient, run_command: RunCommand
) -> None:
    certificates = list_certificates(run_command)
    result = run_command("certificates", "-o", "wide")

    key_pair = component_state.get_current_key_pair(client_with_certificate.get(f"{SECRETS_PATH}/pool"))
    assert key_pair
    assert certificates.keys() == {"pool", CA_SECRET_NAME}
    assert certificates["pool"]["serial"] == f"{key_pair.parsed_certificate.serial_number:x}"
    assert certificates["pool"]["begins"] < certificates["pool"]["renewal"] < certificates["pool"]["ends"]
    row = next(line for line in result.stdout.splitlines() if " pool " in line).split()
    assert row == [
        "macpool",
        DEFAULT_NAMESPACE,
        "pool",
        *(certificates["pool"][key] for key in ("serial", "begins", "ends", "renewal")),
    ]


def test_certificates_fit_into_narrow_terminal(
    client_with_certificate: SyncClient, served_cluster: LocalCluster
) -> None:
    """Check that each certificate has one line of at most 80 columns on a terminal, with relative times."""
    arguments = ["--kubeconfig", str(served_cluster.kubeconfig), "certificates"]

    output = run_on_terminal(f"import os; os.environ['COLUMNS'] = '80'; from console.cli import cli; cli({arguments})")

    rows = [line.split() for line in output.decode().splitlines()]
    for name, days in (("pool", ("729d", "364d")), (CA_SECRET_NAME, ("1094d", "364d"))):
        assert [DEFAULT_NAMESPACE, name, "in", days[0], "in", days[1]] in rows


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2026-03-01T12:00:00Z", "in 28d"), ("2026-02-01T11:55:00Z", "5m ago"), ("", "-"), ("soon", "-")],
)
def test_relative_time_is_in_one_unit(text: str, expected: str) -> None:
    assert format_relative_time(text, datetime(2026, 2, 1, 12, tzinfo=timezone.utc)) == expected


@proves("OSV-20")
@pytest.mark.parametrize("name", ["pool", f"{DEFAULT_NAMESPACE}/pool"])
def test_renew_option_renews_only_given_certificate(
    client_with_certificate: SyncClient, run_command: RunCommand, name: str
) -> None:
    before = list_certificates(run_command)

    result = run_command("certificates", "--renew", name)
    run_renewal(client_with_certificate)

    assert (result.exit_code, result.stdout) == (
        0,
        f"secret/pool in namespace {DEFAULT_NAMESPACE} will be renewed within seconds\n",
    )
    after = list_certificates(run_command)
    assert after["pool"]["serial"] != before["pool"]["serial"]
    assert after[CA_SECRET_NAME] == before[CA_SECRET_NAME]


def test_unknown_certificate_name_is_an_error(client_with_certificate: SyncClient, run_command: RunCommand) -> None:
    result = run_command("certificates", "--renew", "unknown")

    assert result.exit_code == 1
    assert 'certificate "unknown" not found' in result.output


def test_error_about_missing_permission_names_resource(
    client_with_certificate: SyncClient, run_command: RunCommand
) -> None:
    result = run_command("certificates", user=UNPRIVILEGED)

    assert result.exit_code == 1
    assert "configmaps" in result.output


@proves("OSV-23", "NMO-25a")
def test_must_gather_contains_certificate_dates_but_no_private_key(
    client_with_certificate: SyncClient, run_command: RunCommand, tmp_path: Path
) -> None:
    file = tmp_path / "gathered.tar.gz"

    result = run_command("must-gather", "--file", str(file))

    assert result.exit_code == 0, result.output
    with tarfile.open(file) as archive:
        members = [(member.name, archive.extractfile(member)) for member in archive.getmembers()]
        contents = {name: content_file.read().decode() for name, content_file in members if content_file}
    keys = [
        objects.decode_entry(client_with_certificate.get(f"{SECRETS_PATH}/{name}"), PRIVATE_KEY_ENTRY)
        for name in ("pool", CA_SECRET_NAME)
    ]
    assert list_certificates(run_command)["pool"]["serial"] in contents["must-gather/certificates.json"]
    for name, text in contents.items():
        assert "PRIVATE KEY" not in text, name
        assert not any(line in text for key in keys for line in key.splitlines()[1:-1]), name
