"""Builds responses to an open page's polling requests, which check whether a part of the page has changed."""

from __future__ import annotations

from flask import Response, make_response, render_template, request

from console.web.cluster_state import ClusterWatcher


def build_unchanged_response(watcher: ClusterWatcher) -> Response:
    """Build the response to a page whose part has not changed: empty, or only the stale banner if that has changed."""
    if request.args.get("stale", "") == watcher.get_stale_since():
        return Response(status=204)
    response = make_response(render_stale_banner(watcher.get_stale_since()))
    response.headers["HX-Reswap"] = "none"
    return response


def render_stale_banner(stale_since: str) -> str:
    """Render the stale banner as an htmx out-of-band swap; the banner is empty if `stale_since` is ""."""
    return render_template("stale.html", since=stale_since, oob=True)
