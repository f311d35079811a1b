"""Bytes to values and back, without I/O: every metadata file of a repository."""
