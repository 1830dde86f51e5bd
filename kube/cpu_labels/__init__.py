"""Rules for the node labels that list a node's CPU models and CPU features (docs/cpu-labels.md)."""
