"""`python -m commlib`: the command line, for a machine where the script is not on PATH."""

from commlib.tools.cli import main

main(prog_name="commlib")
