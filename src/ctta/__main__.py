"""`python -m ctta` is `ctta`."""

from ctta.cli import main

if __name__ == "__main__":
    main()
