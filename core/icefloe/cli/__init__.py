"""The command `icefloe`."""
