"""``python -m benchmarks.tolerance``: permuted digits."""

from benchmarks.tolerance.digits import main

if __name__ == "__main__":
    main()
