"""A node with GPUs that there are not: our own ``libnvidia-ml.so.1`` on a scripted timeline."""
