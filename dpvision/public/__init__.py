"""What a small public part of the data is good for: a split, a warm start, and help in every private step."""
