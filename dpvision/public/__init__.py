"""Public and synthetic images: making them, training on them without privacy, and using them in private training.

Nothing here sees a private image.

split.py         splits a data set into a public and a private part
trainer.py       runs all training on public images, and resumes it with the same bits
optimisers.py    optimisation steps: SGD, SAM, ASAM, Adam, and adversarial images
batches.py       batches of augmented public images
warmup.py        training with labels, before private training
contrastive.py   training without labels, on random images
dictionary.py    fixed features from patches of random images
assist.py        public gradients that assist private steps
provenance.py    records of the images that public weights or images were made from
prompts.py       images from words
sheets.py        pictures of many images
diffusion/, random/, quality/   diffusion models, random images, and the quality of synthetic images
"""
