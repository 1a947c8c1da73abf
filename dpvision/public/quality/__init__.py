"""Quality measures of synthetic images: FID, precision and recall, Inception score, CAS, suspected copies."""
