"""`python -m dpvision`."""

from dpvision.cli import main

main()
