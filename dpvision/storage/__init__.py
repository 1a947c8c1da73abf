"""Files on disk: the home folder, run folders, tensors with a header, and the software that wrote them."""
