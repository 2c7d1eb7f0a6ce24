"""Run the study: ``python -m studies.implicit``."""

from studies.implicit.study import main

if __name__ == "__main__":
    main()
