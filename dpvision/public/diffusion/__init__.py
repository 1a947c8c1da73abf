"""Diffusion models of small public sets: training, samplers and guidance, to draw new images of each class."""
