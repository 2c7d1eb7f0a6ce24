"""Run the study: ``python -m studies.ten_tasks``."""

from studies.ten_tasks.study import main

if __name__ == "__main__":
    main()
