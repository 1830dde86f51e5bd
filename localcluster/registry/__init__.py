"""An OCI registry as a pod on real nodes, for images that users push and nodes pull."""
