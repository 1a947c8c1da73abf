"""Diffusion models for small public data sets: training, sampling and guidance."""
