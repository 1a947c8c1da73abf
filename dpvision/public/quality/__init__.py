"""How good synthetic images are against real ones: FID, precision and recall, Inception score, CAS, copies."""
