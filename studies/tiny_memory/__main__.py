"""Run the study: ``python -m studies.tiny_memory``."""

from studies.tiny_memory.study import main

if __name__ == "__main__":
    main()
