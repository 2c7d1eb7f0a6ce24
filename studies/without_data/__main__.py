"""Run the study: ``python -m studies.without_data``."""

from studies.without_data.study import main

if __name__ == "__main__":
    main()
