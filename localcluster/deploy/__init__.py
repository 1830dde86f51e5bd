"""`make deploy`: applies one of the project's overlays to the cluster of the current kubeconfig."""
