"""Run the study: ``python -m studies.batch_norm``."""

from studies.batch_norm.study import main

if __name__ == "__main__":
    main()
