"""What icefloe does, in one run: see `demo.story`."""
