"""What the product asked of the API server: its requests by moment, account, verb and resource, from the audit log.

The server's own metrics count everybody's requests; the log names who asked. `localcluster/audit-policy.yaml` has the
reads of the product's accounts logged, too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from localcluster.access import service_account

ACCOUNTS = service_account("")
"""What all names of the product's accounts begin with."""
WATCH = "watch"
ENDED, STARTED = "ResponseComplete", "ResponseStarted"


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        at: when it arrived, in seconds since 1970.
        account: whose it is.
        verb, resource: `list`, `pods`; a subresource after a slash.
        namespace, name: of the object, "" for none.
        is_missing: that was answered with 404.
    """

    at: float
    account: str
    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    is_missing: bool = False

    @property
    def what(self) -> str:
        """Verb and resource."""
        return f"{self.verb} {self.resource}"


class AuditLog:
    """The requests of the product since this object was made, or since the last time that `read` was called."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._position = file.stat().st_size

    def read(self) -> list[Request]:
        """Those that came meanwhile, as they ended; a watch counts from its first answer on."""
        with self._file.open("rb") as log:
            log.seek(self._position)
            whole, end, _ = log.read().rpartition(b"\n")
        self._position += len(whole) + len(end)
        return list(requests(whole.splitlines()))


def requests(lines: Iterable[bytes]) -> Iterator[Request]:
    """The product's requests among the lines of an audit log; the first may be the rest of one."""
    for line in lines:
        if ACCOUNTS.encode() in line and line.startswith(b"{"):
            entry = json.loads(line)
            account = entry["user"].get("username", "")
            stage = STARTED if entry["verb"] == WATCH else ENDED
            if account.startswith(ACCOUNTS) and entry["stage"] == stage:
                yield _request(entry, account.removeprefix(ACCOUNTS))


def _request(entry: Mapping[str, Any], account: str) -> Request:
    about = entry.get("objectRef") or {"resource": entry["requestURI"].partition("?")[0]}
    resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
    moment = datetime.fromisoformat(entry["requestReceivedTimestamp"].replace("Z", "+00:00"))
    where = (about.get("namespace", ""), about.get("name", ""))
    is_missing = (entry.get("responseStatus") or {}).get("code") == HTTPStatus.NOT_FOUND
    return Request(moment.timestamp(), account, entry["verb"], resource, *where, is_missing=is_missing)


def counted(found: Iterable[Request]) -> dict[str, float]:
    """How many there are, by verb and resource; watches, which last, are left out."""
    return dict(Counter(request.what for request in found if request.verb != WATCH))
