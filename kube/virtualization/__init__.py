"""What virtual machines ask of a drain: who migrates and when, and whose launcher pod stays. Pure, but for `lookup`."""
