"""The product alone for a while: what it does and asks then."""
