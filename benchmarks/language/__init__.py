"""Does it help? A small GPT learns English, then Python: ``python -m benchmarks.language prepare|run|plot``."""
