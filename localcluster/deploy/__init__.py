"""`make deploy`: one of our overlays, applied to the cluster of the current kubeconfig."""
