"""Run the study: ``python -m studies.kept_optimiser``."""

from studies.kept_optimiser.study import main

if __name__ == "__main__":
    main()
