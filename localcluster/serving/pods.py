"""Knative Serving as pods on real nodes, with Traefik as its networking layer."""

from __future__ import annotations

from pathlib import Path

from localcluster.knative import install
from localcluster.knative.pods import KnativePods
from localcluster.knative.program_pods import ProgramPods
from localcluster.programs import build

SETTINGS = {
    "config-network": {"ingress-class": "traefik.ingress.networking.knative.dev"},
    # An image name without a registry, such as localhost/nodemaintenance, counts as one of index.docker.io.
    "config-deployment": {"registries-skipping-tag-resolving": "kind.local,ko.local,dev.local,index.docker.io"},
}
"""Selects the networking layer, and excludes the nodes' local images from the resolution of tags to digests."""
SERVING = KnativePods(install.SERVING, ("activator", "autoscaler", "controller", "webhook"), SETTINGS)
TRAEFIK = ProgramPods("traefik", build.TRAEFIK, Path(__file__).with_name("traefik.yaml"))
"""Routes the requests to Knative Services, without Envoy."""
ADDONS = (SERVING, TRAEFIK)
"""The add-ons that run Knative Services, in the order of their installation."""
