"""Rules for the node labels that list the CPU models and features of a node (docs/cpu-labels.md)."""
