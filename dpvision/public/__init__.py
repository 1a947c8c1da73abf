"""Public images: a part of the data set aside, training on it without privacy, and the help that it is to private
training. Nothing here sees a private image.

split.py         a public and a private part, disjoint and together all
trainer.py       every training on public images: stopped and resumed to the bit
optimisers.py    a step of descent: SGD, SAM, ASAM, Adam, and the worst images near given ones
batches.py       views of public images, step by step
warmup.py        training with labels, before private training
contrastive.py   training without labels, on random images
dictionary.py    a prior in closed form, from patches of random images
assist.py        noisy gradients seen along directions that public images chose
provenance.py    which images a network learned from, and whether one of them is private
prompts.py       images from words
sheets.py        pictures of many images
diffusion/, random/, quality/   models of public images, random processes, and how good synthetic images are
"""
