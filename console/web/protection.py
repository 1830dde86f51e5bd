"""Protects the console against CSRF, cross-site scripting and DNS rebinding."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from flask import Flask, Response, abort, current_app, g, request
from werkzeug.exceptions import SecurityError
from werkzeug.sansio.utils import host_is_trusted

TOKEN_FIELD = "csrf"  # noqa: S105 - the name of the field, not its value
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
MAX_FORM_BYTES = 256 * 1024
"""Maximum size of a form in bytes, enough for 500 node names of maximum length and a reason."""
TLS_COOKIE_NAME = "__Host-console"
TOKEN_COOKIE_SETTING = "TOKEN_COOKIE_NAME"  # noqa: S105 - the name of a setting
"""Flask setting with the name of the cookie that contains the CSRF token.

The token is random and not signed with a key of this process. Each replica of the console therefore accepts forms that
another replica rendered, even after that replica has stopped.
"""


def register_protection(app: Flask, *, tls: bool, hosts: list[str], probes: Collection[str]) -> None:
    """Register checks for every request of the app, and security headers for every response.

    `hosts` are the accepted values of the Host header (empty: any). The console refuses other values, because DNS
    rebinding can map any name to its address. The Flask endpoints `probes` accept any Host, because the kubelet uses
    the pod's address and the probes reveal no secrets. `tls` is whether browsers connect only over HTTPS.
    """
    name = TLS_COOKIE_NAME if tls else "console"
    app.config.update(
        SECRET_KEY=secrets.token_bytes(32),
        SESSION_COOKIE_NAME=name,
        SESSION_COOKIE_SECURE=tls,
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Strict",
        TOKEN_COOKIE_NAME=f"{name}-form",
        MAX_CONTENT_LENGTH=MAX_FORM_BYTES,
        MAX_FORM_MEMORY_SIZE=MAX_FORM_BYTES,
    )
    if hosts:
        app.before_request(_build_host_check(hosts, probes))
    app.before_request(_check_csrf)
    app.after_request(_add_headers)
    app.jinja_env.globals["csrf_token"] = get_csrf_token


def get_csrf_token() -> str:
    """Return this browser's CSRF token, to put it into a form; if the token is new, the response sets its cookie."""
    if TOKEN_FIELD not in g:
        setattr(g, TOKEN_FIELD, _get_token_cookie() or secrets.token_urlsafe(32))
    return str(getattr(g, TOKEN_FIELD))


def _get_token_cookie() -> str:
    return request.cookies.get(current_app.config[TOKEN_COOKIE_SETTING], "")


def _build_host_check(hosts: list[str], probes: Collection[str]) -> Callable[[], None]:
    def check_host() -> None:
        if request.endpoint not in probes and not host_is_trusted(request.headers.get("Host", ""), hosts):
            raise SecurityError(f"Host {request.headers.get('Host')!r} is not trusted")

    return check_host


def _check_csrf() -> None:
    """Abort a POST request with 403 unless Sec-Fetch-Site, Origin and the form's CSRF token are valid."""
    if request.method in SAFE_METHODS:
        return
    if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        abort(403, "the request came from another site: nothing was changed")
    origin = request.headers.get("Origin")
    if origin is not None and _parse_host(origin) != request.host:
        abort(403, "the request came from another origin: nothing was changed")
    cookie_token, form_token = _get_token_cookie(), request.form.get(TOKEN_FIELD, "")
    if not cookie_token or not hmac.compare_digest(cookie_token.encode(), form_token.encode()):
        abort(403, "the form's token is missing or outdated: nothing was changed; load the page again")


def _parse_host(origin: str) -> str | None:
    """Return the host and port of an Origin header, or None (not "", which would equal an empty Host header)."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def _add_headers(response: Response) -> Response:
    response.headers.update(SECURITY_HEADERS)
    if TOKEN_FIELD in g and get_csrf_token() != _get_token_cookie():
        secure = current_app.config["SESSION_COOKIE_SECURE"]
        name = current_app.config[TOKEN_COOKIE_SETTING]
        response.set_cookie(name, get_csrf_token(), secure=secure, httponly=True, samesite="Strict")
    if request.endpoint != "static":
        response.headers["Cache-Control"] = "no-store"
    return response
