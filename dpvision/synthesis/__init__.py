"""Public images that no private image had a part in."""
