"""`kubectl maintenance console`: serve the web console, on this machine or in a cluster."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import click

from console.terminal.options import CONTEXT, KUBECONFIG, broker_option, cluster_options, functions_option
from console.terminal.recording import missing
from eventing.urls import host_and_port

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


def _networks(context: click.Context, option: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    try:
        for network in value:
            ip_network(network)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


@click.command
@click.option(
    "--listen", default="127.0.0.1:8090", show_default=True, metavar="ADDRESS:PORT", help="Where it can be reached."
)
@click.option(
    "--journal",
    "journal_url",
    envvar=["DATABASE_URL", "JOURNAL"],
    help="File or postgresql:// URL of the journal.  [env: DATABASE_URL, JOURNAL]",
)
@functions_option("functions", "the Triggers' own addresses")
@broker_option
@click.option(
    "--host",
    "hosts",
    multiple=True,
    envvar="CONSOLE_HOSTS",
    help="Name by which browsers may ask for it.  [default: any, but on this machine its own; env: CONSOLE_HOSTS]",
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
    help="Header in which it names the groups, separated by commas.  [env: CONSOLE_GROUPS_HEADER]",
)
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    envvar="CONSOLE_PROXIES",
    default=("127.0.0.0/8", "::1"),
    show_default=True,
    callback=_networks,
    help="Address or network of that proxy; nobody else's headers count.  [env: CONSOLE_PROXIES]",
)
@click.option("--tls/--no-tls", envvar="CONSOLE_TLS", help="Browsers reach it by https.  [env: CONSOLE_TLS]")
@cluster_options
def console(
    listen: str,
    journal_url: str | None,
    functions: str,
    broker: str,
    hosts: tuple[str, ...],
    user_header: str,
    groups_header: str,
    proxies: tuple[str, ...],
    tls: bool,
) -> None:
    """Serve the web console until Ctrl-C.

    Where only this machine can reach it, everybody who does acts as the kubeconfig's user, as with kubectl proxy.
    Elsewhere each request brings a bearer token, or comes through a proxy that names the user.

    \b
    Example:
      kubectl maintenance console
      kubectl maintenance console --listen 127.0.0.1:8090 --journal .cluster/product/journal.db
    """
    from console.web.serving import Settings, serve  # half a second that no other command should pay

    if groups_header and not user_header:
        raise click.BadParameter("needs --user-header, too", param_hint="--groups-header")
    if journal_url and (file := missing(journal_url)):
        note = f"there is no journal at {file} yet: no events are shown until `record` writes one there"
        click.echo(note, err=True)
    here = _is_local(listen)
    meta = click.get_current_context().meta
    serve(
        Settings(
            listen,
            here,
            journal=journal_url or "",
            functions=functions,
            broker=broker,
            hosts=hosts or (LOCAL_NAMES if here else ()),
            user_header=user_header,
            groups_header=groups_header,
            proxies=proxies,
            tls=tls,
            kubeconfig=meta.get(KUBECONFIG),
            context=meta.get(CONTEXT),
        )
    )


def _is_local(listen: str) -> bool:
    try:
        host, _ = host_and_port(listen)
    except ValueError:
        message = f"{listen!r} is no ADDRESS:PORT such as 127.0.0.1:8090"
        raise click.BadParameter(message, param_hint="--listen") from None
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        raise click.BadParameter(f"{host!r} is no IP address", param_hint="--listen") from None
