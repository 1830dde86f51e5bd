"""`make deploy` and `make undeploy`: install an overlay on the cluster of the current kubeconfig, and remove it."""
