"""The code that sees private records. Whatever leaves this package has been charged to the ledger and noised."""
