"""Speed and memory, measured side by side in one process: ``python -m benchmarks [names] [--quick]``."""
