"""Public and synthetic images: generating them, training on them without privacy, and using them in private training.

Nothing here reads a private image.

split.py         splits a data set into a public and a private part
trainer.py       runs all training on public images, and resumes it with bit-identical results
optimisers.py    optimisation steps: SGD, SAM, ASAM and Adam; adversarial images
batches.py       batches of augmented public images
warmup.py        supervised training on public images, before private training
contrastive.py   self-supervised training on random images
dictionary.py    fixed features from patches of random images
assist.py        public gradients that assist private steps
provenance.py    records of the images that public weights or images derive from
prompts.py       images generated from text prompts
sheets.py        contact sheets of small images
diffusion/, random/, quality/   diffusion models, random images, and the quality of synthetic images
"""
