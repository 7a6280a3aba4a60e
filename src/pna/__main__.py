"""`python -m pna`, the same as `pna`."""

from pna.cli import app

app(prog_name="pna")
