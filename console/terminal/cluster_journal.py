"""Reads the journal of a cluster from the console, through the API server's proxy, with any credentials.

The caller needs two permissions, which the ClusterRoles of the product's users contain. One is to request a token of
the ServiceAccount `READER`; the token proves to the console that the caller may read the journal. The other is to use
the proxy to the Service of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from http import HTTPStatus
from operator import attrgetter
from typing import Any

from console.operations.errors import NoResult
from console.terminal.journal import JournalUnavailable
from eventing.http_binding import BadEvent
from eventing.journal.entries import BATCH_CAPACITY_CHARACTERS, Entry, Query, split_into_batches
from eventing.journal.wire import (
    AUDIENCE,
    ENTRIES_PATH,
    MAX_NUMBERS,
    NUMBERS_PATH,
    READER,
    TOKEN_HEADER,
    decode_entry,
    encode_query,
    split_by_length,
)
from kube.client.access_reviews import AUTHENTICATION_API_VERSION
from kube.client.api_errors import ApiError, Denied, Unavailable
from kube.client.sync_client import SyncClient
from kube.paths import encode_path_segment

TOKEN_SECONDS = 600
"""Lifetime of a token, the shortest that an API server issues."""
MAX_LIST_CHARACTERS = 3000
"""Maximum characters of a list in a URL: the console's server accepts 4094 characters in the whole request line."""


class ClusterJournal:
    """The journal of the cluster that `client` reaches; the product is installed in `namespace`.

    Every method raises `NoResult` with a remedy if the journal cannot be read; `JournalUnavailable` if a later attempt
    may succeed.

    Args:
        page_size: Maximum number of entries that one request numbers.
    """

    def __init__(self, client: SyncClient, namespace: str, page_size: int = MAX_NUMBERS) -> None:
        self._client, self._namespace, self._page_size = client, namespace, page_size
        self._token = ""
        core = f"/api/v1/namespaces/{encode_path_segment(namespace)}"
        self._token_path = f"{core}/serviceaccounts/{READER}/token"
        self._service_path = f"{core}/services/{READER}/proxy"

    def select(self, query: Query | None = None) -> list[Entry]:
        """Return the selected entries with their attempts, in order of arrival; by default all entries.

        As in `Journal.select`, the number of an entry determines the order, however many requests are needed.
        """
        return sorted(self.iter_entries(query or Query()), key=attrgetter("seq"))

    def iter_entries(self, query: Query) -> Iterator[Entry]:
        """Yield the selected entries one by one, read in batches; entries that are pruned meanwhile are left out."""
        for numbers in split_into_batches(self._iter_sizes(query), BATCH_CAPACITY_CHARACTERS):
            for part in split_by_length(numbers, MAX_LIST_CHARACTERS):
                yield from self._get_entries(part)

    def _get_entries(self, numbers: tuple[int, ...]) -> list[Entry]:
        try:
            return [decode_entry(data) for data in self._get(ENTRIES_PATH, Query(seqs=numbers))["entries"]]
        except BadEvent as error:
            raise NoResult(f"cannot read the cluster's journal: the console sent an invalid event: {error}") from None

    def list_event_numbers(self, query: Query) -> tuple[int, ...]:
        """Return the numbers of the selected entries."""
        return tuple(number for number, _ in self._iter_sizes(query))

    def _iter_sizes(self, query: Query) -> Iterator[tuple[int, int]]:
        """Yield number and size of each selected entry, with several requests for long lists."""
        if query.ids:
            for part in split_by_length(query.ids, MAX_LIST_CHARACTERS):
                yield from self._iter_pages(replace(query, ids=part))
        else:
            yield from self._iter_pages(query)

    def _iter_pages(self, query: Query) -> Iterator[tuple[int, int]]:
        is_limited = bool(query.limit)
        page_size = query.limit or self._page_size
        while True:
            page = self._get(NUMBERS_PATH, replace(query, limit=page_size))["numbers"]
            yield from ((number, size) for number, size in page)
            if is_limited or len(page) < page_size:
                return
            query = replace(query, after_seq=max(number for number, _ in page))

    def _get(self, path: str, query: Query) -> Mapping[str, Any]:
        try:
            return self._request(path, query)
        except ApiError as error:
            raise self._build_error(error) from None

    def _request(self, path: str, query: Query) -> Mapping[str, Any]:
        """Send the request with the last token, and again with a new token if the last one has expired."""
        if self._token:
            try:
                return self._request_with_token(path, query)
            except Denied as error:
                if error.status != HTTPStatus.UNAUTHORIZED:
                    raise
        self._token = self._create_token()
        return self._request_with_token(path, query)

    def _request_with_token(self, path: str, query: Query) -> Mapping[str, Any]:
        api = self._client.api.with_header(TOKEN_HEADER, self._token)
        return self._client.run(api.request("GET", f"{self._service_path}{path}", query={"query": encode_query(query)}))

    def _create_token(self) -> str:
        """Request a token that proves the right to read the journal."""
        spec = {"audiences": [AUDIENCE], "expirationSeconds": TOKEN_SECONDS}
        body = {"apiVersion": AUTHENTICATION_API_VERSION, "kind": "TokenRequest", "spec": spec}
        token: str = self._client.create(self._token_path, body)["status"]["token"]
        return token

    def _build_error(self, error: ApiError) -> NoResult:
        """Return the error with a remedy; the API server's own errors are `Status` objects, unlike the console's."""
        message = f"cannot read the cluster's journal: {' '.join(error.message.split())}"
        error_class = JournalUnavailable if isinstance(error, Unavailable) else NoResult
        if error.status and error.body.get("kind") != "Status":
            return error_class(message)  # The console's message contains the remedy.
        if error.status == HTTPStatus.FORBIDDEN:
            return NoResult(message, "ask an administrator for the ClusterRole maintenance-viewer")
        if error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE):
            remedy = (
                f'check that the component "console" of this version runs in the namespace "{self._namespace}", or '
                "name a journal with --journal"
            )
            return error_class(message, remedy)
        return error_class(message, "check that --kubeconfig and --context name the cluster, and that it is up")
