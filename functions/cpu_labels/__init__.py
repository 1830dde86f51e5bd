"""The step that labels nodes with the CPU models and features they offer, and the modules that it is made of."""
