"""What commands and pages both do. No click, no Flask."""
