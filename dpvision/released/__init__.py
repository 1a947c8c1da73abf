"""Works on what has left: models, released data sets, learners, cards and reports. Costs no epsilon."""
