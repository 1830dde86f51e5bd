"""Steps that move virtual machines away from a node that is drained, and keep their launcher pods meanwhile."""
