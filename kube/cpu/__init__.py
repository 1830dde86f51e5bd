"""Rules for the labels with the CPU models and features that a node offers (docs/cpu-labels.md)."""
