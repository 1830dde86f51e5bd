"""Error pages: the HTTP status of each error, one sentence, and no internal details."""

from __future__ import annotations

from http import HTTPStatus

from flask import Flask, Response, make_response, render_template
from werkzeug.exceptions import HTTPException, SecurityError
from werkzeug.wrappers import Response as AnyResponse

from console.operations.errors import OperationError
from console.web.audit import set_refusal_reason
from eventing.journal.store import JournalError, UnstorableData
from kube.client.api_errors import ApiError, Conflict, Denied, NotFound, Rejected

STATUS_OF_ERROR = {NotFound: HTTPStatus.NOT_FOUND, Conflict: HTTPStatus.CONFLICT, Rejected: HTTPStatus.BAD_REQUEST}
"""HTTP status for errors that the API server returned; all other `ApiError`s except `Denied` become 503."""


def register_error_handlers(app: Flask) -> None:
    """Register error handlers that render every error of the app as a page."""
    app.register_error_handler(OperationError, lambda error: render_error(error.message, error.http_status))
    app.register_error_handler(ApiError, lambda error: render_error(error.message, get_http_status(error)))
    app.register_error_handler(JournalError, lambda error: render_error(str(error), HTTPStatus.SERVICE_UNAVAILABLE))
    app.register_error_handler(UnstorableData, lambda error: render_error(str(error), HTTPStatus.BAD_REQUEST))
    app.register_error_handler(HTTPException, _handle_http_error)


def get_http_status(error: ApiError) -> HTTPStatus:
    """Return the HTTP status of the page that shows this error."""
    if isinstance(error, Denied):
        return HTTPStatus.UNAUTHORIZED if error.status == HTTPStatus.UNAUTHORIZED else HTTPStatus.FORBIDDEN
    return STATUS_OF_ERROR.get(type(error), HTTPStatus.SERVICE_UNAVAILABLE)


def render_error(message: str, status: int) -> Response:
    """Build the error page; for an htmx request, only the part that replaces page content."""
    set_refusal_reason(message)
    response = make_response(render_template("error.html", message=message, status=HTTPStatus(status)), status)
    if status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _handle_http_error(error: HTTPException) -> AnyResponse:
    if isinstance(error, SecurityError):  # An HTML page's links would contain the untrusted Host.
        return Response(f"{error.description}\n", HTTPStatus.BAD_REQUEST, mimetype="text/plain")
    if error.code is None or error.code < 400:
        return error.get_response()  # a redirect from Flask
    return render_error(str(error.description), error.code)
