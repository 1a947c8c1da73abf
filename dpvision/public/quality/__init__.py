"""Quality of synthetic images compared with real ones: FID, precision and recall, Inception score, CAS, copies."""
