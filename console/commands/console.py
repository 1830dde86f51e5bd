"""`kubectl maintenance console`: serves the web console, on a user's machine or in a cluster."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from console.operations.missing_libraries import explain_missing_module
from console.terminal.options import broker_option, cluster_options, functions_option, get_cluster_access
from console.terminal.output import warn
from eventing.endpoints import parse_host_port
from kube.loopback import is_loopback_host

if TYPE_CHECKING:
    from console.web.callers import AuthenticatingProxy

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
MIN_SECRET_CHARACTERS = 16
"""Minimum length of the proxy secret in characters, because a shorter secret could be guessed."""


def _check_networks(context: click.Context, option: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    try:
        for network in value:
            ip_network(network)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


@click.command
@click.option(
    "--listen",
    default="127.0.0.1:8090",
    show_default=True,
    metavar="ADDRESS:PORT",
    help="Address and port to serve on.",
)
@click.option(
    "--journal-api",
    is_flag=True,
    help="Serve only the journal, for kubectl maintenance events --journal cluster; requires tokens of the cluster.",
)
@click.option(
    "--journal",
    "journal_url",
    envvar=["DATABASE_URL", "JOURNAL"],
    help="File or postgresql:// URL of the journal.  [env: DATABASE_URL, JOURNAL]",
)
@functions_option
@broker_option
@click.option(
    "--host",
    "hosts",
    multiple=True,
    envvar="CONSOLE_HOSTS",
    help="Host name by which browsers may reach the console; repeatable.  "
    f"[default: any; on a loopback address: {', '.join(LOCAL_NAMES)}; env: CONSOLE_HOSTS]",
)
@click.option(
    "--user-header",
    envvar="CONSOLE_USER_HEADER",
    default="",
    help="Header in which an authenticating proxy names the user.  [env: CONSOLE_USER_HEADER]",
)
@click.option(
    "--groups-header",
    envvar="CONSOLE_GROUPS_HEADER",
    default="",
    help="Header in which the authenticating proxy lists the user's groups, separated by commas.  "
    "[env: CONSOLE_GROUPS_HEADER]",
)
@click.option(
    "--proxy",
    "addresses",
    multiple=True,
    envvar="CONSOLE_PROXIES",
    default=("127.0.0.0/8", "::1"),
    show_default=True,
    callback=_check_networks,
    help="Address or network of the authenticating proxy; the console rejects all other clients; repeatable.  "
    "[env: CONSOLE_PROXIES]",
)
@click.option(
    "--proxy-secret",
    "secret_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="CONSOLE_PROXY_SECRET",
    help="File with the secret that identifies the authenticating proxy.  [env: CONSOLE_PROXY_SECRET]",
)
@click.option(
    "--secret-header",
    envvar="CONSOLE_SECRET_HEADER",
    default="X-Console-Secret",
    show_default=True,
    help="Header in which the authenticating proxy sends the secret.  [env: CONSOLE_SECRET_HEADER]",
)
@click.option("--tls/--no-tls", envvar="CONSOLE_TLS", help="Browsers connect by HTTPS.  [env: CONSOLE_TLS]")
@cluster_options
def console(
    listen: str,
    journal_api: bool,
    journal_url: str | None,
    functions_url: str,
    broker: str,
    hosts: tuple[str, ...],
    tls: bool,
    **proxy: Any,
) -> None:
    """Serve the web console until Ctrl-C.

    With --user-header, each request must come through a proxy that sends a secret and names the user. Without it, all
    requests to a loopback address act as the kubeconfig's user, as with kubectl proxy. On any other address, each
    request must carry a bearer token.

    \b
    Example:
      kubectl maintenance console
      kubectl maintenance console --listen 127.0.0.1:8090 --journal .cluster/product/journal.db
    """
    with explain_missing_module():
        from console.web.server import Settings, serve  # Importing this module takes 500 ms.

    authenticating_proxy = _build_proxy(**proxy)
    is_local = _is_loopback_address(listen)
    settings = Settings(
        listen,
        journal_api,
        is_local,
        journal_url=journal_url or "",
        functions_url=functions_url,
        broker_url=broker,
        hosts=hosts or (LOCAL_NAMES if is_local else ()),
        proxy=authenticating_proxy,
        tls=tls,
        cluster_access=get_cluster_access(),
    )
    serve(settings, warn)


def _build_proxy(
    user_header: str, groups_header: str, addresses: tuple[str, ...], secret_file: Path | None, secret_header: str
) -> AuthenticatingProxy | None:
    """Return the authenticating proxy that the options configure, or None without --user-header.

    Raises `BadParameter` if a required option is missing, or if the proxy secret is too short or not ASCII.
    """
    from console.web.callers import AuthenticatingProxy

    if not user_header:
        given = {"--groups-header": groups_header, "--proxy-secret": secret_file}
        for option in (name for name, value in given.items() if value):
            raise click.BadParameter("requires --user-header", param_hint=option)
        return None
    if secret_file is None:
        message = "requires --proxy-secret: an address alone does not prove who sent the header"
        raise click.BadParameter(message, param_hint="--user-header")
    secret = secret_file.read_text(errors="replace").strip()
    if len(secret) < MIN_SECRET_CHARACTERS or not secret.isascii():
        message = f"{secret_file} does not contain a secret of at least {MIN_SECRET_CHARACTERS} ASCII characters"
        raise click.BadParameter(message, param_hint="--proxy-secret")
    return AuthenticatingProxy(secret, secret_header, user_header, groups_header, addresses)


def _is_loopback_address(listen: str) -> bool:
    """Return whether `listen` is a loopback address. Raises `BadParameter` if the address is invalid."""
    try:
        host, _ = parse_host_port(listen)
    except ValueError:
        message = f"{listen!r} is not ADDRESS:PORT, such as 127.0.0.1:8090"
        raise click.BadParameter(message, param_hint="--listen") from None
    try:
        return is_loopback_host(host)
    except ValueError:
        raise click.BadParameter(f"{host!r} is not an IP address", param_hint="--listen") from None
