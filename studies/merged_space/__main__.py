"""Run the study: ``python -m studies.merged_space``."""

from studies.merged_space.study import main

if __name__ == "__main__":
    main()
