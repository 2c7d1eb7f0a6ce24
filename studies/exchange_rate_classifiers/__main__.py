"""Run the study: ``python -m studies.exchange_rate_classifiers``."""

from studies.exchange_rate_classifiers.study import main

if __name__ == "__main__":
    main()
