"""Rules for the lifecycle conditions of nodes (KEP-5683)."""
