"""Run the study: ``python -m studies.conjugate_steps``."""

from studies.conjugate_steps.study import main

if __name__ == "__main__":
    main()
