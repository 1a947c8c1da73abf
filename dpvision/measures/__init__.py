"""Attacks on released mixtures, and measures of them; for data that is public, or for the operator's eyes only.

simulation.py   the error of least squares on released rows against the degree (Fig. 11)
collapse.py     spread within classes against spread between them (the metric of neural collapse)
distance.py     how near mixtures come to records of other classes (minimum Euclidean distance)
labels.py       values of mixed labels, with Poisson and with hierarchical sampling (Fig. 2)
membership.py   who was in the data, by a model's losses
inversion.py    an image from released features
sheet.py        a sheet of originals and of what was found

Privacy: nothing here adds noise or charges a ledger. What a measure says of private records is not private.
"""
