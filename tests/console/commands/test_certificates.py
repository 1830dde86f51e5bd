"""Tests of `certificates` on a real cluster: a list that needs no permission on Secrets, and renewal on request."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from functions.certificates.settings import Settings
from functions.certificates.renewal_pass import renewed
from kube.certificates import certificate_objects
from kube.certificates.components import COMPONENTS, LABEL
from kube.certificates.certificate_objects import KEY
from kube.client.sync_client import Cluster
from kube.paths import NAMESPACE, Object
from localcluster.access import UNPRIVILEGED
from localcluster.cluster import LocalCluster
from tests.console.conftest import Run
from tests.proofs import proves

SECRETS, MAPS = certificate_objects.secrets_path(NAMESPACE), certificate_objects.publications_path(NAMESPACE)
AUTHORITY = COMPONENTS["macpool"].authority


@pytest.fixture
def admin(served: LocalCluster) -> Iterator[Cluster]:
    """Yield the API client, after creating a certificate of the component `macpool`, which no other test uses."""
    door = served.door()
    labels, names = {LABEL: "macpool"}, {certificate_objects.NAMES: "pool.svc"}
    door.create(SECRETS, {"metadata": {"name": "pool", "labels": labels, "annotations": names}})
    look(door)
    yield door
    for path in (SECRETS, MAPS):
        for item in door.list(path, labels=f"{LABEL}=macpool")["items"]:
            door.delete(f"{path}/{item['metadata']['name']}", uid=item["metadata"]["uid"])


def look(door: Cluster) -> None:
    """Renew the certificates that are due, as the function's step does at a tick."""
    errors = door.run(renewed(door.api, Settings(), datetime.now(timezone.utc))).errors
    assert errors == []


def listed(run: Run) -> dict[str, Object]:
    """Return the listed certificates of the component `macpool`, by the name of their Secret."""
    answer = run("certificates", "-o", "json")
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)["certificates"]
    return {entry["secret"]: entry for entry in found if entry["component"] == "macpool"}


@proves("OSV-20", "OSV-21")
def test_certificates_are_listed_with_serial_dates_and_next_renewal(admin: Cluster, run: Run) -> None:
    entries = listed(run)
    shown = run("certificates")

    pair = certificate_objects.current(admin.get(f"{SECRETS}/pool"))
    assert pair
    assert entries.keys() == {"pool", AUTHORITY}
    assert entries["pool"]["serial"] == f"{pair.parsed.serial_number:x}"
    assert entries["pool"]["begins"] < entries["pool"]["renewal"] < entries["pool"]["ends"]
    row = next(line for line in shown.stdout.splitlines() if " pool " in line).split()
    assert row == [
        "macpool",
        NAMESPACE,
        "pool",
        *(entries["pool"][key] for key in ("serial", "begins", "ends", "renewal")),
    ]


@proves("OSV-20")
@pytest.mark.parametrize("name", ["pool", f"{NAMESPACE}/pool"])
def test_one_is_renewed_on_demand(admin: Cluster, run: Run, name: str) -> None:
    before = listed(run)

    asked = run("certificates", "--renew", name)
    look(admin)

    assert (asked.exit_code, asked.stdout) == (
        0,
        f"secret/pool in {NAMESPACE} is renewed at the next look, within seconds\n",
    )
    after = listed(run)
    assert after["pool"]["serial"] != before["pool"]["serial"]
    assert after[AUTHORITY] == before[AUTHORITY]


def test_a_name_that_nobody_has_is_refused(admin: Cluster, run: Run) -> None:
    refused = run("certificates", "--renew", "nobody")

    assert refused.exit_code == 1
    assert "there is no certificate nobody" in refused.output


def test_who_may_not_is_told_so(admin: Cluster, run: Run) -> None:
    refused = run("certificates", user=UNPRIVILEGED)

    assert refused.exit_code == 1
    assert "configmaps" in refused.output


@proves("OSV-23", "NMO-25a")
def test_a_must_gather_has_names_and_dates_and_no_key(admin: Cluster, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "gathered.tar.gz"

    gathered = run("must-gather", "--file", str(file))

    assert gathered.exit_code == 0, gathered.output
    with tarfile.open(file) as archive:
        opened = [(entry.name, archive.extractfile(entry)) for entry in archive.getmembers()]
        contents = {name: found.read().decode() for name, found in opened if found}
    keys = [certificate_objects.text(admin.get(f"{SECRETS}/{name}"), KEY) for name in ("pool", AUTHORITY)]
    assert listed(run)["pool"]["serial"] in contents["must-gather/certificates.json"]
    for name, text in contents.items():
        assert "PRIVATE KEY" not in text, name
        assert not any(line in text for key in keys for line in key.splitlines()[1:-1]), name
