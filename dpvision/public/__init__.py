"""What is done with a small public part of the data before, and beside, private training.

split.py         a public and a private part of one data set
batches.py       public images as batches of views, some of them mixed
sharpness.py     one step of descent: SGD, SAM, ASAM
adversarial.py   the worst images near given ones
settings.py      what a warm-up is set to, and the published settings by name
warmup.py        training without privacy on public or synthetic images, which can be stopped and resumed
taught_by.py     which images taught a network, noted in its weights
assist.py        private steps that public gradients assist
"""
