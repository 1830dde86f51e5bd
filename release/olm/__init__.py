"""Generates the bundle and the catalog entry with which OLM, the Operator Lifecycle Manager, installs the product."""
