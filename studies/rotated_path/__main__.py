"""Run the study: ``python -m studies.rotated_path``."""

from studies.rotated_path.study import main

if __name__ == "__main__":
    main()
