"""What decides the rows of a store, under the current `NUMBERS`: a change without raising it fails.

The golden vectors beside this file cover the published methods; this one covers what they leave out. After raising
`NUMBERS`, write the new values with `PYTHONPATH=src:. python tests/golden/test_numbers.py`.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.conftest import golden_net, golden_stream

import ctta
from ctta import streams
from ctta._core.rng import Rng
from ctta.augment import NAMED
from ctta.bench.cell import NUMBERS
from ctta.bench.evaluation import quality
from ctta.corruptions import CORRUPTIONS, EXTRA, corrupt
from ctta.data import image_folder, read_sample, to_batch

FILE = Path(__file__).parent / "numbers.json"
PARTS = {}


def part(function):
    PARTS[function.__name__] = function
    return function


@part
def first_batch_of_the_embedded_stream(_):
    images = streams.continual(streams.embedded(), batch_size=20)[0].images
    return [images.double().mean().item(), *images[0, :, 5, 5].tolist()]


@part
def orders(_):
    source = streams.embedded()
    plans = [streams.make(name, source, images=60, batch_size=20) for name in streams.SCENARIOS]
    return {p.name: [*p.index_of[::80][:5].tolist(), *p.domain_of[::80][:5].tolist()] for p in plans}


@part
def random_generator(_):
    rng = Rng(7)
    drawn = torch.rand(3, generator=rng.generator)
    with rng.lend(torch.device("cpu")):
        lent = torch.rand(3)
    return [*drawn.tolist(), *lent.tolist()]


@part
def corruptions(_):
    images = read_sample().images[:2].copy()
    made = {name: corrupt(images, name, 5, profile="cifar", seed=3) for name in (*CORRUPTIONS, *EXTRA)}
    return {name: [float(pixels[0].mean()), float(pixels.std())] for name, pixels in made.items()}


@part
def readers(folder):
    pixels = read_sample().images[:2].copy()
    (folder / "cat").mkdir()
    for number, image in enumerate((pixels[0], np.repeat(pixels[1], 2, axis=0))):
        Image.fromarray(image).save(folder / "cat" / f"{number}.png")
    images = image_folder(folder, preprocessing="resize256-crop224").images(np.array([0, 1]))
    return [float(images[0].mean()), float(images[1].mean()), to_batch(pixels).double().mean().item()]


@part
def augmentation(_):
    x = to_batch(read_sample().images[:2].copy())
    views = {name: augment(x, torch.Generator().manual_seed(0)).double() for name, augment in NAMED.items()}
    return {name: [view.mean().item(), view.std().item()] for name, view in views.items()}


@part
def measurement(_):
    logits = torch.linspace(-2, 3, 40, dtype=torch.float64).reshape(4, 10).sin() * 4
    found = quality(logits, torch.arange(4))
    return [found["confidence"], found["nll"], found["brier"], *np.array(found["bins"]).sum(0).tolist()]


@part
def methods(_):
    """Every method with its defaults after three small batches."""
    out = {}
    for entry in ctta.list_methods():
        adapter = ctta.adapt(golden_net(torch.float64), entry.name)
        logits = [adapter(x[:8]) for x in golden_stream(torch.float64)[:3]][-1]
        out[entry.name] = logits[0, :3].tolist()
    return out


@part
def defaults(_):
    """Defaults of settings are not part of a key: one that changes makes other numbers under the same key."""
    return {entry.name: {item.name: item.default for item in entry.settings} for entry in ctta.list_methods()}


@pytest.mark.parametrize("name", PARTS)
def test_numbers_change_only_with_their_version(name, tmp_path):
    kept = json.loads(FILE.read_text())
    assert kept["numbers"] == NUMBERS, f"write the values of NUMBERS = {NUMBERS}: see the top of this file"
    cure = f"{name} gives other numbers: raise NUMBERS in src/ctta/bench/cell.py, and write the new values"
    assert name != "defaults" or not unknown(PARTS[name](tmp_path), kept[name]), "write the values of new settings"
    assert same(PARTS[name](tmp_path), kept[name]), f"{cure} (the top of this file says how)"


def unknown(found, kept):
    return [f"{method}.{name}" for method in found for name in found[method] if name not in kept.get(method, {})]


def same(found, kept):
    """Equal up to the last digits, which other processors round otherwise; what is new changes no old key."""
    if isinstance(kept, dict):
        return all(same(found[name], value) for name, value in kept.items() if name in found)
    return found == (kept if not isinstance(kept, list) else pytest.approx(kept, rel=1e-4, abs=1e-5))


if __name__ == "__main__":
    import tempfile

    torch.set_num_threads(1)
    FILE.write_text(
        json.dumps(
            {"numbers": NUMBERS, **{n: f(Path(tempfile.mkdtemp())) for n, f in PARTS.items()}},
            indent=1,
            default=str,
        )
        + "\n"
    )
    print(f"wrote {FILE}")  # noqa: T201
