"""Reads the write requests of all clients, including rejected requests, from the API server's audit log."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from kube import install_lease
from kube.paths import Object
from localcluster.access import make_username

OWN_USER_PREFIX = make_username("")
"""Prefix of the user names of the product's ServiceAccounts."""
READ_VERBS = ("get", "list", "watch")
"""Read-only verbs; the API server also logs the product's reads."""
SELF_REVIEW_RESOURCE = "selfsubjectreviews"
"""Resource with which a client queries its own user name; the API server does not persist its objects."""


class AuditLog:
    """The write requests in the API server's audit log since this object was created. Thread-safe.

    Requests that the API server rejected are included.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._end = file.read_bytes().rfind(b"\n") + 1  # The last line may be incomplete.
        self._entries: list[Object] = []
        self._lock = threading.Lock()

    def read_entries(self) -> list[Object]:
        """Return the entries of all write requests, in order of completion; parse only the new lines of the log."""
        with self._lock, self._file.open("rb") as log:
            log.seek(self._end)
            lines, newline, _ = log.read().rpartition(b"\n")
            self._end += len(lines) + len(newline)
            entries = [json.loads(line) for line in lines.split(b"\n") if line]
            self._entries += [
                entry
                for entry in entries
                if entry["verb"] not in READ_VERBS and entry["objectRef"]["resource"] != SELF_REVIEW_RESOURCE
            ]
            return list(self._entries)

    def list_writes_by(self, prefix: str = OWN_USER_PREFIX) -> list[Object]:
        """Return the write requests of users whose name starts with `prefix`, except those for the install Lease.

        The functions renew this Lease at times that a test does not control.
        """
        entries = [entry for entry in self.read_entries() if entry["user"].get("username", "").startswith(prefix)]
        return [entry for entry in entries if entry["objectRef"].get("name") != install_lease.LEASE_NAME]

    def list_persisted_writes(self) -> list[Object]:
        """Return the entries of all write requests except dry runs."""
        return [entry for entry in self.read_entries() if not is_dry_run(entry)]

    def list_evictions(self, *names: str) -> list[Object]:
        """Return the eviction requests for all pods, or for the pods with these names."""
        entries = [entry for entry in self.read_entries() if entry["objectRef"].get("subresource") == "eviction"]
        return [entry for entry in entries if not names or entry["objectRef"]["name"] in names]


def is_dry_run(entry: Object) -> bool:
    """Return whether the request is a dry run; a DELETE request has its options in the body."""
    if entry["verb"] == "delete":
        return bool((entry.get("requestObject") or {}).get("dryRun") == ["All"])
    return "dryRun=All" in entry["requestURI"]
