"""New images of each class, learned from a small public set: a diffusion model, its samplers and its guidance."""
