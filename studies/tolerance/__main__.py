"""``python -m studies.tolerance``: permuted digits."""

from studies.tolerance.digits import main

if __name__ == "__main__":
    main()
