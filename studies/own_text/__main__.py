"""Run the study: ``python -m studies.own_text``."""

from studies.own_text.study import main

if __name__ == "__main__":
    main()
