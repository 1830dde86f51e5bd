"""Packages the product for distribution: OLM's bundle and catalog, and the files of a release."""
