"""`python -m metasp`."""

from metasp.cli import main

main()
