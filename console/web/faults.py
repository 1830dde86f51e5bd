"""Error pages: the HTTP status of each error, one sentence, and no internals."""

from __future__ import annotations

from http import HTTPStatus

from flask import Flask, Response, make_response, render_template
from werkzeug.exceptions import HTTPException, SecurityError
from werkzeug.wrappers import Response as AnyResponse

from console.operations.errors import OperationError
from console.web.audit import note_refusal
from eventing.journal.store import BadData, JournalError
from kube.door.api_errors import ApiError, Conflict, Denied, NotFound, Rejected

STATUSES = {NotFound: HTTPStatus.NOT_FOUND, Conflict: HTTPStatus.CONFLICT, Rejected: HTTPStatus.BAD_REQUEST}
"""What the API server refused, in our own words; what it could not do is 503."""


def show_errors(app: Flask) -> None:
    """Have every error of the app answered by a page."""
    app.register_error_handler(OperationError, lambda error: page(error.message, error.http_status))
    app.register_error_handler(ApiError, lambda error: page(error.message, status_of(error)))
    app.register_error_handler(JournalError, lambda error: page(str(error), HTTPStatus.SERVICE_UNAVAILABLE))
    app.register_error_handler(BadData, lambda error: page(str(error), HTTPStatus.BAD_REQUEST))
    app.register_error_handler(HTTPException, _http)


def status_of(error: ApiError) -> HTTPStatus:
    """The status of the page that shows it."""
    if isinstance(error, Denied):
        return HTTPStatus.UNAUTHORIZED if error.status == HTTPStatus.UNAUTHORIZED else HTTPStatus.FORBIDDEN
    return STATUSES.get(type(error), HTTPStatus.SERVICE_UNAVAILABLE)


def page(message: str, status: int) -> Response:
    """A page, or for a part of one the sentence alone, which says what is wrong."""
    note_refusal(message)
    response = make_response(render_template("error.html", message=message, status=HTTPStatus(status)), status)
    if status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _http(error: HTTPException) -> AnyResponse:
    if isinstance(error, SecurityError):  # the Host is not ours, and so no link of a page would be
        return Response(f"{error.description}\n", HTTPStatus.BAD_REQUEST, mimetype="text/plain")
    if error.code is None or error.code < 400:
        return error.get_response()  # a redirect of Flask's own
    return page(str(error.description), error.code)
