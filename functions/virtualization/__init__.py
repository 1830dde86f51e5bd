"""The steps `migrate`, which migrates VMs away from drained nodes, and `protect`, which protects their pods."""
