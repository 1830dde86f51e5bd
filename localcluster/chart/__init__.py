"""Generates the templates of the Helm chart charts/node-maintenance from the kustomize sources."""
