"""Rules of the labels that tell which CPU models and features a node offers (docs/cpu-labels.md)."""
