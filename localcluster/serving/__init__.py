"""Knative Serving on real nodes, with Traefik as its networking layer."""
