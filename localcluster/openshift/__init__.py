"""The OpenShift kinds that the upgrade mutex needs and a plain Kubernetes cluster does not have."""
