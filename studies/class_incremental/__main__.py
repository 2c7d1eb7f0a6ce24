"""Run the study: ``python -m studies.class_incremental``."""

from studies.class_incremental.study import main

if __name__ == "__main__":
    main()
