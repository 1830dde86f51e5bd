"""The step that renews certificates, and the modules that it is made of."""
