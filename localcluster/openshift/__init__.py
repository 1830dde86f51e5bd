"""The OpenShift kinds that the upgrade mutex needs, and that a plain Kubernetes cluster lacks."""
