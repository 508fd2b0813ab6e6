"""A simulated NVML (``libnvidia-ml.so.1``): shows GPUs that there are not, from a file of text."""
