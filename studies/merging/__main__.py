"""Run the study: ``python -m studies.merging``."""

from studies.merging.study import main

if __name__ == "__main__":
    main()
