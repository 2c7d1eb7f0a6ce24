"""Run the study: ``python -m studies.projection``."""

from studies.projection.study import main

if __name__ == "__main__":
    main()
