"""The trusted part, where noise is added to sums over private records after a charge. See README.md."""
