"""Steps that migrate virtual machines away from drained nodes, and protect their virt-launcher pods until then."""
