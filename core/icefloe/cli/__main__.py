"""`python -m icefloe.cli` is the command `icefloe`."""

from icefloe.cli.main import run

if __name__ == "__main__":
    run()
