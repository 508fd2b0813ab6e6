"""What a calibration measures, in child processes: products, memory, collectives, disk, steps."""
