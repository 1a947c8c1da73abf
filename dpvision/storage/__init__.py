"""Files on disk: the home folder, run folders and safetensors files, and the software that wrote them."""
