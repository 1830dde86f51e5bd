"""The step `label-cpu`, which labels nodes with the CPU models and features that they offer."""
