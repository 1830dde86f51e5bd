"""Packages the product for distribution: the bundle and catalog for OLM, and the files of a release."""
