"""Files: run folders, tensors with a header, and what software wrote them."""
