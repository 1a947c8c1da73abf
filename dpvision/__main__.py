"""Run the command line as `python -m dpvision`."""

from dpvision.cli import main

main()
