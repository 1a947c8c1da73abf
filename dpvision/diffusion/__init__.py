"""Diffusion models of public images: fitting, sampling, and how good what they draw is."""
