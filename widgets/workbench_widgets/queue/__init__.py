"""The queue and the devices of a store."""
