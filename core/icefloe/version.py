"""The version of icefloe, and of everything released with it."""

__version__ = "0.1.0"
