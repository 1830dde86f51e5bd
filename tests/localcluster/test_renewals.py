"""Certificates of a `make up` cluster: the product renews them, the CLI lists them, and no key leaks elsewhere."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import tarfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from localcluster.processes import await_ready
from localcluster.programs import build
from localcluster.up import state_directory
from tests.localcluster.commands import ROOT, kubectl, record_of
from tests.proofs import proves

pytestmark = pytest.mark.slow

NAMESPACE = "node-maintenance"
VAULTS = ("servers/etcd", "product/admission")
"""Directories that contain keys by design: the API server's storage, and the Secret that the webhook mounts."""
SECONDS = 40


def cli(directory: Path, *words: str) -> str:
    """Run `kubectl maintenance` on the directory's cluster and return its output."""
    environment = {**os.environ, "KUBECONFIG": str(directory / state_directory.KUBECONFIG)}
    line = [str(Path(sys.executable).with_name("kubectl-maintenance")), *words]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def listed(directory: Path) -> dict[str, str]:
    """Return secret name → serial number, as listed by the CLI."""
    found = json.loads(cli(directory, "certificates", "-o", "json"))["certificates"]
    return {entry["secret"]: entry["serial"] for entry in found}


def shown(directory: Path) -> str:
    """Return the certificate that the webhook presents to clients now."""
    configuration = ("get", "validatingwebhookconfiguration", "nodemaintenance-validate", "-o")
    url = urlsplit(kubectl(directory, *configuration, "jsonpath={.webhooks[0].clientConfig.url}"))
    return ssl.get_server_certificate((str(url.hostname), url.port or 0))


def issued(directory: Path) -> str:
    """Return the certificate in the Secret, "" if the Secret does not exist."""
    found = kubectl(directory, "get", "secret", "validate", "-n", NAMESPACE, "--ignore-not-found", "-o", "json")
    return base64.b64decode(json.loads(found)["data"]["tls.crt"]).decode() if found.strip() else ""


@proves("OSV-20", "OSV-23")
@pytest.mark.parametrize("deed", ["asked for", "deleted"])
def test_the_webhooks_certificate_is_renewed_by_the_product_and_the_server_takes_it(up: Path, deed: str) -> None:
    """Check that the certificate is renewed after a request or a deletion of its Secret, without a server restart."""
    before, process, serial = shown(up), record_of(up, "validate").pid, listed(up)["validate"]

    if deed == "asked for":
        cli(up, "certificates", "--renew", "validate")
    else:
        kubectl(up, "delete", "secret", "validate", "-n", NAMESPACE)

    await_ready("another certificate", lambda: issued(up) not in ("", before), [], SECONDS)
    await_ready("the server to show it", lambda: shown(up) == issued(up), [], SECONDS)
    await_ready("the list", lambda: listed(up)["validate"] != serial, [], SECONDS)
    assert record_of(up, "validate").pid == process
    assert "no node with name nobody" in refusal(up)


def refusal(directory: Path) -> str:
    """Return kubectl's error for a maintenance of an unknown node, which the webhook denies."""
    metadata, spec = {"name": "nobody"}, {"nodeName": "nobody"}
    body = {"apiVersion": "nodemaintenance.medik8s.io/v1beta1", "kind": "NodeMaintenance"}
    line = [str(build.servers() / "kubectl"), f"--kubeconfig={directory / state_directory.KUBECONFIG}", "create", "-f", "-"]
    text = json.dumps({**body, "metadata": metadata, "spec": spec})
    return subprocess.run(line, input=text, capture_output=True, text=True, check=False, timeout=60).stderr


@proves("OSV-23", "X-4")
def test_no_key_is_in_any_byte_that_is_written_beside_the_secrets(up: Path, tmp_path: Path) -> None:
    """Check that no file outside of the Secrets' directories contains a private key.

    The test renews a certificate, and creates a dead letter and a must-gather archive. It then searches all files of
    the cluster, including databases and logs, and the archive.
    """
    keys = parts_of_keys(up)
    before = shown(up)
    cli(up, "certificates", "--renew", "validate")
    await_ready("another certificate", lambda: shown(up) == issued(up) != before, [], SECONDS)
    keys |= parts_of_keys(up)
    lose_a_letter(up)
    cli(up, "must-gather", "--file", str(tmp_path / "all.tar.gz"), "--journal", str(up / "product" / "journal.db"))

    files = {file.relative_to(up): file for file in up.rglob("*") if file.is_file() and not in_vault(file, up)}
    with tarfile.open(tmp_path / "all.tar.gz") as archive:
        archive.extractall(tmp_path / "archive", filter="data")
    files |= {file.relative_to(tmp_path): file for file in (tmp_path / "archive").rglob("*") if file.is_file()}

    written = {name: file.read_bytes() for name, file in files.items()}
    found = {str(name) for name, content in written.items() for part in keys if part in content}
    assert len(keys) == 3 * 4  # of the server before and after the renewal, and of its CA
    assert {name.name for name in written} >= {
        "journal.db",
        "delivery.db",
        "functions.log",
        "delivery.log",
        "audit.log",
    }
    assert b"renew-certificates" in b"".join(written.values())
    assert found == set()


def parts_of_keys(directory: Path) -> set[bytes]:
    """Return the secret scalar of each Secret's key: as bytes, in PEM, and in the Secret's base64.

    The public key follows it, and is also part of certificates.
    """
    found = json.loads(kubectl(directory, "get", "secrets", "-A", "-o", "json"))["items"]
    values = [value for item in found for name, value in (item.get("data") or {}).items() if name.endswith(".key")]
    lines = [base64.b64decode(value).decode().splitlines() for value in values]
    numbers = [base64.b64decode("".join(text[1:-1])) for text in lines]
    pem = {part.encode() for text in lines for part in (text[1][48:], text[2][:24])}
    return {number[36:68] for number in numbers} | pem | {value[104:156].encode() for value in values}


def in_vault(file: Path, directory: Path) -> bool:
    return any(file.is_relative_to(directory / vault) for vault in VAULTS)


def lose_a_letter(directory: Path) -> None:
    """Post an unsigned event, which the function rejects, so that it becomes a dead letter."""
    hints = (directory / state_directory.READY_FILE).read_text()
    (broker,) = [line.partition(": ")[2] for line in hints.splitlines() if line.startswith("broker: ")]
    about = {"specversion": "1.0", "id": "nobody", "source": "/nobody", "type": "dev.nodemaintenance.node.cordoned"}
    headers = {f"ce-{name}": value for name, value in about.items()}
    requests.post(broker, json={}, headers=headers, timeout=10).raise_for_status()
    await_ready("the dead letter", lambda: "nobody" in letters(directory), [], SECONDS)


def letters(directory: Path) -> str:
    return cli(directory, "deadletters", "--journal", str(directory / "product" / "journal.db"), "-o", "json")
