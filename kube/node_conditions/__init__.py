"""Rules for the lifecycle conditions on nodes."""
