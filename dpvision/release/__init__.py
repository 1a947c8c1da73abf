"""Private release: a data set of noisy features, made once, on which everyone may train for ever."""
