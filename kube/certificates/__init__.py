"""Rules of certificates and of the objects that hold them, pure; `lookup` alone uses the door."""
