"""The step that labels nodes with the CPU models and features they offer, and its supporting modules."""
