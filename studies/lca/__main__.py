"""Run the study: ``python -m studies.lca``."""

from studies.lca.study import main

if __name__ == "__main__":
    main()
