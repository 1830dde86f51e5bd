"""How a command looks and takes its options."""
