"""Sees private records before the noise. Whatever leaves from here was charged and noised first."""
