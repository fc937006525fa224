"""What verification costs on a GPU: `python -m benchmarks.device.run`."""
