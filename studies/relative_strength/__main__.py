"""Run the study: ``python -m studies.relative_strength``."""

from studies.relative_strength.study import main

if __name__ == "__main__":
    main()
