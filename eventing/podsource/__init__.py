"""PodSource: a Knative ContainerSource that watches the pods on nodes under maintenance, and their PDBs."""
