"""Responses to an open page that asks repeatedly whether a part of it has changed."""

from __future__ import annotations

from flask import Response, make_response, render_template, request

from console.web.cluster_state import ClusterWatcher


def build_unchanged_response(watcher: ClusterWatcher) -> Response:
    """Build an empty response, or one with only the stale banner if the page's banner is outdated."""
    if request.args.get("stale", "") == watcher.get_stale_since():
        return Response(status=204)
    response = make_response(render_stale_banner(watcher.get_stale_since()))
    response.headers["HX-Reswap"] = "none"
    return response


def render_stale_banner(stale_since: str) -> str:
    """Render the banner of a page, which is empty if `stale_since` is "", as an htmx out-of-band swap."""
    return render_template("stale.html", since=stale_since, oob=True)
