"""Use of what was released: models, data sets, learners, cards and reports. It spends no epsilon."""
