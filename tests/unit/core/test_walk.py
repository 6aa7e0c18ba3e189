"""What one batch crosses: the walk a reader has to follow from `adapter(images)` to the logits.

Functions of ctta are counted once each, comprehensions and lambdas not, nor what belongs to the caller: the model.
Run with `-s` to read the walk.
"""

import os
import sys
from collections import Counter

import torch

import ctta

SOURCES = os.path.dirname(ctta.__file__) + os.sep
FUNCTIONS, FILES = 54, 11


def walk(call, *, without=("models/",)):
    """Names of the functions of ctta that a call crosses, in the order they are entered, with how often."""
    found = Counter()

    def see(frame, event, _value):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCES) and not code.co_name.startswith("<"):
            found[os.path.relpath(code.co_filename, SOURCES), code.co_qualname] += 1

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(before)
    return {(file, name): count for (file, name), count in found.items() if not file.startswith(without)}


def show(found):
    files = list(dict.fromkeys(file for file, _ in found))
    lines = [f"{file:34} {name} x {count}" for (file, name), count in found.items()]
    sys.stdout.write("\n  ".join([f"\n{len(found)} functions in {len(files)} files:", *lines, ""]))
    return len(found), len(files)


def palm(augment):
    adapter = ctta.adapt(ctta.models.load("embedded:"), "palm", preset="embedded", augment=augment)
    images = torch.rand(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        adapter(images)
    return adapter, images


def test_a_batch_of_palm_crosses_few_functions_in_few_files():
    adapter, images = palm(lambda x: x.flip(-1))
    functions, files = show(walk(lambda: adapter(images)))
    assert adapter.last.shares["moved"] > 0
    assert functions <= FUNCTIONS
    assert files <= FILES


def test_the_default_augmentation_is_one_file_more():
    adapter, images = palm(None)
    found = walk(lambda: adapter(images))
    show(found)
    assert {file for file, _ in found if file.startswith("augment")} == {os.path.join("augment", "cotta.py")}
