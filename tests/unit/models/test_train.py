"""Training a source model: it learns, it repeats, it resumes, and what it writes can be loaded."""

import dataclasses
import functools
import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

import ctta
from ctta import models
from ctta._core.checkpoint import write
from ctta.cli import cli
from ctta.models.train import (
    Split,
    TrainSettings,
    augment,
    error_rate,
    load_split,
    measure_statistics,
    new_model,
    one_cycle,
    train,
)

RECIPE = TrainSettings(epochs=4, batch=16, lr=0.1, small_epochs=1, small_size=8, padding=2)


def colours(count, seed, size=16):
    """Two classes told apart at a glance: red and blue."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2, count)
    images = draw.integers(0, 60, (count, 3, size, size), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[2 * label] += 150
    return torch.from_numpy(images), torch.from_numpy(labels)


def run(settings=RECIPE, resume=None, stop_after=None):
    images, labels = colours(64, 0)
    model = new_model("wrn-10-1", 2, settings.seed)
    seen = []
    for progress in train(model, images, labels, settings, resume):
        seen.append(progress)
        if stop_after is not None and (progress.epoch, progress.batch) == stop_after:
            break
    return model, seen


@functools.cache
def whole_run(momentum=RECIPE.momentum):
    return run(dataclasses.replace(RECIPE, momentum=momentum))


def test_training_learns_and_ends_in_eval_mode():
    model, seen = whole_run()
    assert not model.training
    assert error_rate(model, *colours(50, 1)) < 0.1
    assert [(p.epoch, p.batch) for p in seen] == [(e, b) for e in (1, 2, 3, 4) for b in range(1, 5)]
    assert seen[-1].loss < seen[0].loss


def test_the_same_seed_gives_the_same_weights_and_leaves_global_state_alone():
    state = torch.get_rng_state()
    one, two = whole_run()[0], run()[0]
    assert models.weight_hash(one) == models.weight_hash(two)
    other = run(dataclasses.replace(RECIPE, seed=1), stop_after=(1, 1))[0]
    assert not torch.equal(other.conv1.weight, new_model("wrn-10-1", 2, RECIPE.seed).conv1.weight)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("stop", "momentum"), [((1, 2), 0.9), ((2, 3), 0.9), ((3, 1), 0.0)])
def test_an_interrupted_run_resumes_to_the_same_weights(stop, momentum, tmp_path):
    recipe = dataclasses.replace(RECIPE, momentum=momentum)
    whole = models.weight_hash(whole_run(momentum)[0])
    path = tmp_path / "model.run"
    run(recipe, resume=path, stop_after=stop)
    model, seen = run(recipe, resume=path)
    assert models.weight_hash(model) == whole
    assert seen[0].epoch == stop[0]


def test_a_run_with_other_settings_is_not_continued(tmp_path):
    path = tmp_path / "model.run"
    run(resume=path, stop_after=(2, 1))
    with pytest.raises(ctta.StateError, match="other settings"):
        run(TrainSettings(epochs=5), resume=path)
    write(path, {"a": torch.zeros(1)}, {"kind": "adapter"})
    with pytest.raises(ctta.StateError, match="other settings"):
        run(resume=path)


def test_the_learning_rate_rises_to_its_peak_and_falls_to_zero():
    rates = [one_cycle(step, 100, 0.5, 0.2) for step in range(100)]
    assert max(rates) == rates[19] == 0.5
    assert rates[:20] == sorted(rates[:20])
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert rates[-1] < 0.001


def test_crops_shift_and_flips_mirror_each_image_on_its_own():
    image = torch.arange(64.0).view(1, 1, 8, 8).expand(500, -1, -1, -1)
    out = augment(image, 2, torch.Generator().manual_seed(0))
    assert out.shape == image.shape
    assert len({tuple(x.flatten().tolist()) for x in out}) == 50  # 5 x 5 shifts, mirrored or not
    flipped = (out[:, 0, 0, 0] > out[:, 0, 0, 1]).float().mean()
    assert 0.35 < flipped < 0.65
    assert torch.equal(augment(image, 0, torch.Generator().manual_seed(1)).sort(-1).values, image)


def test_the_command_trains_on_a_folder_and_writes_weights_with_a_manifest(tmp_path):
    for part, count, seed in (("train", 64, 0), ("val", 20, 1)):
        images, labels = colours(count, seed)
        for k, (pixels, label) in enumerate(zip(images.permute(0, 2, 3, 1).numpy(), labels.tolist(), strict=True)):
            folder = tmp_path / "data" / part / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{k}.png")
    out = tmp_path / "source.safetensors"
    arguments = [
        "train",
        "wrn-10-1",
        str(tmp_path / "data"),
        str(out),
        *("--epochs", "4", "--batch", "16", "--lr", "0.1"),
    ]
    result = CliRunner().invoke(cli, [*arguments, "--threads", "1"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    manifest = json.loads(out.with_suffix(".json").read_text())
    assert manifest["arch"] == "wrn-10-1"
    assert manifest["recipe"]["epochs"] == 4
    assert manifest["clean_test_error"] < 0.3
    model = models.load(f"file:{out}")
    assert models.weight_hash(model) == manifest["weight_hash"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "source.json", "source.safetensors"]


def test_another_cycle_starts_from_given_weights_and_ends_can_be_averaged(tmp_path, monkeypatch):
    images, labels = colours(96, 0)
    split = Split(images, labels, *colours(40, 1), 2)
    monkeypatch.setattr("ctta.models.train.load_split", lambda _: split)

    def command(name, *options):
        out = tmp_path / f"{name}.safetensors"
        words = [
            "train",
            "wrn-10-1",
            "cifar10",
            str(out),
            *("--threads", "1", "--epochs", "1", "--batch", "16"),
            *options,
        ]
        result = CliRunner().invoke(cli, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return models.read_weights(out), json.loads(out.with_suffix(".json").read_text())

    one, _ = command("one")
    first = str(tmp_path / "one.safetensors")
    two, manifest = command("two", "--init", first, "--lr", "1e-9", "--weight-decay", "0")
    assert torch.allclose(one["conv1.weight"], two["conv1.weight"], atol=1e-6)  # it went on from there
    assert manifest["from"][0]["weight_hash"] == json.loads((tmp_path / "one.json").read_text())["weight_hash"]
    three, _ = command("three", "--seed", "5")
    mean, manifest = command("mean", "--average", first, "--average", str(tmp_path / "three.safetensors"))
    assert torch.allclose(mean["fc.weight"], (one["fc.weight"] + three["fc.weight"]) / 2)
    assert manifest["recipe"] is None
    assert len(manifest["from"]) == 2


def test_measured_statistics_are_those_of_the_training_images():
    images, _ = colours(256, 0)
    model = new_model("wrn-10-1", 2, 0)
    measure_statistics(model, images, TrainSettings(padding=0), batches=2, batch=128)
    first = model.conv1(images.float() / 255)
    norm = model.block1.layer[0].bn1
    assert torch.allclose(norm.running_mean, first.mean((0, 2, 3)), atol=1e-2)
    assert norm.momentum == 0.1
    assert not model.training


def test_data_that_is_not_there_is_answered_with_what_would_do(tmp_path):
    with pytest.raises(ctta.DataError, match="holds `train` and `test`"):
        load_split(str(tmp_path))
