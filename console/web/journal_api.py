"""The journal API, which `kubectl maintenance events` calls through the API server's service proxy.

The API server checks whether the caller may use the service proxy, but it does not forward the caller's identity, and
any pod can reach the port directly. Each request must therefore contain a token of the ServiceAccount `READER`, which
the caller requests from the API server. The permission to request this token is the permission to read the journal.
The console never receives the user's own credentials.

Touches: tokenreviews create.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from http import HTTPStatus
from threading import BoundedSemaphore

from flask import Flask, Response, jsonify, request
from werkzeug.exceptions import BadRequest, HTTPException, NotFound, Unauthorized

from console.operations.archive import redact_possible_secrets
from eventing.journal.entries import BATCH_CAPACITY_CHARACTERS, Query
from eventing.journal.store import Journal, JournalError, UnstorableData
from eventing.journal.wire import (
    AUDIENCE,
    ENTRIES_PATH,
    MAX_NUMBERS,
    NUMBERS_PATH,
    READER,
    TOKEN_HEADER,
    decode_query,
    encode_entry,
)
from kube.client.access_reviews import AUTHENTICATION_API_VERSION
from kube.client.api_errors import ApiError
from kube.client.sync_client import SyncClient
from kube.paths import DEFAULT_NAMESPACE

READER_USERNAME = f"system:serviceaccount:{DEFAULT_NAMESPACE}:{READER}"
ACCEPTANCE_SECONDS = 10
"""Seconds for which an accepted token is not reviewed again; the API server caches tokens for the same time."""
MAX_ACCEPTED_TOKENS = 100
"""Maximum number of accepted tokens in the cache; an evicted token is reviewed again."""
MAX_RESPONSE_CHARACTERS = 2 * BATCH_CAPACITY_CHARACTERS
"""Maximum total size of several entries in one response, which limits the memory that a request can take.

The command requests at most `BATCH_CAPACITY_CHARACTERS`, but entries may grow in the meantime by new attempts.
"""
MAX_CONCURRENT_READS = 4
"""Maximum number of responses with entries that are built concurrently, because each takes several times its size."""


def create_journal_api(client: SyncClient, journal: Journal | None) -> Flask:
    """Build the WSGI app of the journal API.

    Args:
        client: The API client for token reviews.
        journal: The journal, or None to respond to every request with 404.
    """
    app = Flask(__name__, static_folder=None)
    check, reads = build_token_check(client), BoundedSemaphore(MAX_CONCURRENT_READS)

    @app.before_request
    def require_token() -> None:
        check(request.headers.get(TOKEN_HEADER, ""))

    @app.get(NUMBERS_PATH)
    def numbers() -> Response:
        query = _parse_query()
        if query.limit > MAX_NUMBERS:
            raise BadRequest(f"the limit is greater than {MAX_NUMBERS}: use a smaller limit, or 0 for all events")
        sizes = _require_journal(journal).list_sizes(replace(query, limit=query.limit or MAX_NUMBERS))
        return jsonify(numbers=[list(row) for row in sizes])

    @app.get(ENTRIES_PATH)
    def entries() -> Response:
        query = _parse_query()
        if not query.seqs:
            raise BadRequest("the query has no seqs: send the numbers of the entries")
        opened_journal = _require_journal(journal)
        with reads:
            sizes = [size for _, size in opened_journal.list_sizes(query)]
            if len(sizes) > 1 and sum(sizes) > MAX_RESPONSE_CHARACTERS:
                message = f"the entries have more than {MAX_RESPONSE_CHARACTERS} characters: request fewer at once"
                raise BadRequest(message)
            found = [redact_possible_secrets(encode_entry(entry)) for entry in opened_journal.select(query)]
            # Unlike `jsonify`, `json.dumps` keeps the order of an event's attributes.
            return Response(json.dumps({"entries": found}), mimetype="application/json")

    _register_error_handlers(app)
    return app


def build_token_check(client: SyncClient, clock: Callable[[], float] = time.monotonic) -> Callable[[str], None]:
    """Build a version of `check_token` that caches accepted tokens for at most `ACCEPTANCE_SECONDS`."""

    @lru_cache(MAX_ACCEPTED_TOKENS)  # The cache does not store calls that raise an error.
    def check_token_in_period(token: str, _period: int) -> None:
        check_token(client, token)

    return lambda token: check_token_in_period(token, int(clock() // ACCEPTANCE_SECONDS))


def check_token(client: SyncClient, token: str) -> None:
    """Raise `Unauthorized` unless `token` is a token of the ServiceAccount `READER` for the audience of this API.

    The ValidatingAdmissionPolicy in the component `console` limits the lifetime of these tokens.
    """
    if not token:
        raise Unauthorized(f"the request has no token in the header {TOKEN_HEADER}")
    spec = {"token": token, "audiences": [AUDIENCE]}
    body = {"apiVersion": AUTHENTICATION_API_VERSION, "kind": "TokenReview", "spec": spec}
    status = client.create(f"/apis/{AUTHENTICATION_API_VERSION}/tokenreviews", body)["status"]
    # An authenticator that does not support audiences returns no audiences, and accepts tokens for any audience.
    if not status.get("authenticated") or AUDIENCE not in (status.get("audiences") or []):
        raise Unauthorized("the token is not valid for the journal")
    if (username := status["user"].get("username")) != READER_USERNAME:
        raise Unauthorized(f'the token of "{username}" does not permit reading the journal')


def _parse_query() -> Query:
    try:
        return decode_query(request.args.get("query", "{}"))
    except ValueError as error:
        raise BadRequest(str(error)) from None


def _require_journal(journal: Journal | None) -> Journal:
    if journal is None:
        remedy = 'use the component "postgresql", and create the Secret "journal"'
        raise NotFound(f"the console has no journal that it can read: {remedy}")
    return journal


def _register_error_handlers(app: Flask) -> None:
    """Register handlers that return every error as a JSON object with a `message`, like the API server."""
    unavailable = HTTPStatus.SERVICE_UNAVAILABLE
    app.register_error_handler(UnstorableData, lambda error: _build_error(HTTPStatus.BAD_REQUEST, str(error)))
    app.register_error_handler(JournalError, lambda error: _build_error(unavailable, str(error)))
    app.register_error_handler(ApiError, lambda error: _build_error(unavailable, error.message))
    app.register_error_handler(HTTPException, _handle_http_error)


def _handle_http_error(error: HTTPException) -> Response:
    if isinstance(error, NotFound) and request.url_rule is None:
        message = f"this version of the console does not serve {request.path}: install the version of the command"
        return _build_error(HTTPStatus.NOT_FOUND, message)
    return _build_error(error.code or HTTPStatus.INTERNAL_SERVER_ERROR, str(error.description))


def _build_error(status: int, message: str) -> Response:
    response = jsonify(message=message)
    response.status_code = status
    return response
