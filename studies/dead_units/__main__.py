"""Run the study: ``python -m studies.dead_units``."""

from studies.dead_units.study import main

if __name__ == "__main__":
    main()
