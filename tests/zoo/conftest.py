"""The zoo's tests need torchvision and timm, so they run in an environment of their own: make test-zoo."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("timm") and find_spec("torchvision") else ["test_*.py"]
