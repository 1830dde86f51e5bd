"""The local delivery: Knative's sources, Broker and Triggers in one process, from the same manifests."""
