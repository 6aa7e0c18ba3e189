"""Warming up EcoTTA's meta networks: it learns, it resumes, and what it writes fits what it was made for."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests.conftest import golden_net, golden_stream
from tests.unit.models.test_train import colours

import ctta
from ctta._core import checkpoint
from ctta.cli import cli
from ctta.methods.ecotta.meta_networks import meta_networks
from ctta.methods.ecotta.warmup import Warmup, WarmupSettings, blur, photometric
from ctta.models import build
from ctta.models.train import new_model

RECIPE = WarmupSettings(epochs=2, batch=16, lr=0.02, decay_at="1", seed=5)


def data(count=48):
    images, labels = colours(count, 0)
    return images[:, :, ::2, ::2].contiguous(), labels


def warm(model=None, settings=RECIPE, resume=None, stop_after=None):
    warmup = Warmup(golden_net() if model is None else model, settings)
    seen = []
    for progress in warmup.run(*data(), resume):
        seen.append(progress)
        if (progress.epoch, progress.batch) == stop_after:
            break
    return warmup, seen


def weights(warmup):
    return checkpoint.digest(warmup.networks.state_dict())


@pytest.mark.parametrize("start", ["identity", "standard"])
def test_it_learns_without_touching_the_source_network_or_global_random_state(start):
    model, state = golden_net(), torch.get_rng_state()
    before = checkpoint.digest(model.state_dict())
    warmup, seen = warm(model, WarmupSettings(**{**vars(RECIPE), "start": start}))
    assert seen[-1].loss < 0.8 * seen[0].loss
    assert [(p.epoch, p.batch) for p in seen] == [(e, b) for e in (1, 2) for b in (1, 2, 3)]
    assert checkpoint.digest(model.state_dict()) == before
    assert torch.equal(torch.get_rng_state(), state)
    frozen = dict(warmup.model.named_parameters())
    assert all(torch.equal(frozen[name], value) for name, value in model.named_parameters())
    assert all(m.ready for m in meta_networks(warmup.model))


def test_the_first_batch_is_answered_as_by_the_source_network_when_it_starts_as_identity():
    s = WarmupSettings(epochs=1, batch=16, lr=1e-9, jitter=0.0, blur=0.0, grayscale=0.0)
    warmup = Warmup(golden_net(), s)
    images, labels = data(16)
    (progress,) = warmup.run(images, labels)
    logits = ctta.adapt(golden_net(), "bn1")(images.float() / 255)
    assert progress.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-3)


def test_the_rate_rises_in_the_first_epoch_and_falls_where_it_should():
    s = WarmupSettings()
    assert [s.rate(0, b, 4) for b in range(4)] == pytest.approx([0.0125, 0.025, 0.0375, 0.05])
    rates = [s.rate(epoch, 0, 4) for epoch in range(1, 10)]
    assert rates == pytest.approx([0.05, 0.05, 0.01, 0.01, 0.01, 0.002, 0.002, 0.0004, 0.0004])
    assert WarmupSettings(decay_at="").rate(9, 0, 4) == 0.05
    with pytest.raises(ctta.SettingError, match="decay_at"):
        WarmupSettings(decay_at="soon")


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_an_interrupted_run_resumes_to_the_same_weights(momentum, tmp_path):
    settings = WarmupSettings(**{**vars(RECIPE), "momentum": momentum})
    whole = weights(warm(settings=settings)[0])
    path = tmp_path / "meta.run"
    warm(settings=settings, resume=path, stop_after=(2, 1))
    warmup, seen = warm(settings=settings, resume=path)
    assert seen[0].epoch == 2
    assert weights(warmup) == whole
    with pytest.raises(ctta.StateError, match="other settings"):
        warm(settings=WarmupSettings(epochs=3, batch=16), resume=path)


def test_bad_data_and_a_run_that_diverges_end_in_a_sentence():
    with pytest.raises(ctta.DataError, match="at least one batch of 16"):
        list(Warmup(golden_net(), RECIPE).run(*data(8)))
    images, labels = data()
    with pytest.raises(ctta.DataError, match="48 images and 47 labels"):
        list(Warmup(golden_net(), RECIPE).run(images, labels[:-1]))
    broken = golden_net()
    broken.fc.weight.data.fill_(float("nan"))
    with pytest.raises(ctta.ModelError, match="diverged in epoch 1"):
        list(Warmup(broken, RECIPE).run(images, labels))


# ---------------------------------------------------------------- the file


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("warm") / "meta.safetensors"
    warm()[0].save(path)
    return path


@pytest.fixture(scope="module")
def stream():
    return [x[:8, :, ::2, ::2].contiguous() for x in golden_stream()[:4]]


def test_the_method_begins_with_the_warmed_up_weights_and_returns_to_them(file, stream):
    adapter = ctta.adapt(golden_net(), "ecotta", warmup=str(file), entropy_margin=1.0)
    warmed = warm()[0]
    begun = {name: value.detach().clone() for name, value in adapter.method.adapted.items()}
    assert len(begun) == 15
    for name, value in warmed.networks.named_parameters():
        assert torch.equal(begun[f"meta_networks.{name}"], value)
    first = [adapter(x) for x in stream]
    assert adapter.last.notes == ()
    adapter.reset()
    assert all(torch.equal(value, begun[name]) for name, value in adapter.method.adapted.items())
    assert all(torch.equal(adapter(x), logits) for x, logits in zip(stream, first, strict=True))


def test_an_adapter_with_a_warm_up_resumes_bit_for_bit(file, stream, tmp_path):
    adapter = ctta.adapt(golden_net(), "ecotta", warmup=str(file))
    for x in stream[:2]:
        adapter(x)
    adapter.save(tmp_path / "adapter")
    twin = ctta.load(tmp_path / "adapter", golden_net())
    for x in stream[2:]:
        assert torch.equal(twin(x), adapter(x))


def test_the_file_serves_the_same_model_in_another_dtype(file, stream):
    adapter = ctta.adapt(golden_net(torch.float64), "ecotta", warmup=str(file))
    assert adapter(stream[0].double()).dtype == torch.float64


def test_a_file_that_does_not_fit_is_refused(file, tmp_path):
    other = golden_net()
    other.fc.weight.data.mul_(1.01)
    for model, settings, words in (
        (other, {}, "another source model"),
        (
            golden_net(),
            {"parts": 2},
            r"do not fit this model and its `parts`: expected .* of shape .*, but they have",
        ),
        (build("wrn-10-1"), {}, r"another source model \(GoldenNet"),
    ):
        with pytest.raises(ctta.StateError, match=words):
            ctta.adapt(model, "ecotta", warmup=str(file), **settings)
    with pytest.raises(ctta.StateError, match="There is no file"):
        ctta.adapt(golden_net(), "ecotta", warmup=str(tmp_path / "nothing"))
    ctta.adapt(golden_net(), "ecotta").save(tmp_path / "adapter")
    with pytest.raises(ctta.StateError, match="holds no ecotta warm-up"):
        ctta.adapt(golden_net(), "ecotta", warmup=str(tmp_path / "adapter"))
    (tmp_path / "short").write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ctta.StateError):
        ctta.adapt(golden_net(), "ecotta", warmup=str(tmp_path / "short"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: tensors.pop("0.bn.weight"), "do not fit this model"),
        (lambda tensors: tensors.update(stranger=torch.ones(2)), "expected stranger of shape None"),
        (lambda tensors: tensors["0.bn.weight"].fill_(float("nan")), "hold NaN or infinity"),
    ],
    ids=["one is missing", "one too many", "NaN"],
)
def test_a_file_with_other_tensors_or_without_numbers_is_refused(file, tmp_path, change, words):
    tensors, header = checkpoint.read(file)
    change(tensors)
    checkpoint.write(tmp_path / "other", tensors, header)
    with pytest.raises(ctta.StateError, match=words):
        ctta.adapt(golden_net(), "ecotta", warmup=str(tmp_path / "other"))


# ---------------------------------------------------------------- the augmentation


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_shares_of_zero_change_nothing_and_shares_of_one_change_every_image():
    x = torch.rand(8, 3, 8, 8, generator=generator(1))
    assert torch.equal(photometric(x, 0, 0, 0, generator()), x)
    for shares in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        out = photometric(x, *shares, generator())
        assert out.shape == x.shape
        assert out.min() >= 0
        assert out.max() <= 1
        assert all(not torch.equal(a, b) for a, b in zip(out, x, strict=True))
    gray = photometric(x, 0, 0, 1, generator())
    assert torch.equal(gray[:, 0], gray[:, 1])
    plain = torch.rand(4, 1, 8, 8, generator=generator(1))
    assert photometric(plain, 1, 1, 1, generator()).shape == plain.shape


def test_images_get_strengths_of_their_own_and_shares_are_kept():
    x = torch.rand(1, 3, 8, 8, generator=generator(1)).expand(400, -1, -1, -1).contiguous()
    out = photometric(x, 0.4, 0.2, 0.1, generator())
    untouched = sum(torch.equal(a, x[0]) for a in out) / 400
    assert untouched == pytest.approx(0.6 * 0.8 * 0.9, abs=0.08)
    assert len({a.sum().item() for a in out}) > 150


def test_blur_keeps_flat_images_and_spreads_a_point_by_its_sigma():
    flat = torch.full((2, 3, 5, 5), 0.3)
    torch.testing.assert_close(blur(flat, torch.tensor([0.1, 2.0]).view(2, 1, 1, 1)), flat)
    point = torch.zeros(2, 1, 5, 5)
    point[:, :, 2, 2] = 1
    out = blur(point, torch.tensor([0.1, 2.0]).view(2, 1, 1, 1))
    side = np.exp(-0.5 / 4)
    assert out[0, 0, 2, 2] == pytest.approx(1)
    assert out[1, 0, 2, 2].item() == pytest.approx(1 / (1 + 2 * side) ** 2, rel=1e-5)
    assert out[1].sum().item() == pytest.approx(1, rel=1e-5)


# ---------------------------------------------------------------- the command


def test_the_command_writes_a_file_and_a_manifest_that_the_method_takes(tmp_path):
    from PIL import Image

    images, labels = colours(40, 0)
    for split, part in (("train", slice(0, 32)), ("test", slice(32, 40))):
        for index, (image, label) in enumerate(zip(images[part], labels[part], strict=True)):
            folder = tmp_path / "data" / split / str(int(label))
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{index}.png")
    made = tmp_path / "model.py"
    made.write_text(
        "from ctta.models.train import new_model\n\ndef net():\n    return new_model('wrn-10-1', 2, 0).eval()\n"
    )
    out = tmp_path / "meta.safetensors"
    command = ["warmup", "ecotta", f"{made}:net", str(tmp_path / "data"), str(out)]
    options = ["--epochs", "1", "--batch", "16", "--parts", "1,2", "--start", "standard", "--lr", "0.01"]
    result = CliRunner().invoke(cli, [*command, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "clean test error" in result.stdout
    assert not out.with_suffix(".run").exists()
    manifest = json.loads(out.with_suffix(".json").read_text())
    assert manifest["recipe"]["parts"] == "1,2"
    assert 0 <= manifest["clean_test_error"] <= 1
    adapter = ctta.adapt(new_model("wrn-10-1", 2, 0), "ecotta", warmup=str(out), parts="1,2")
    assert adapter(torch.rand(4, 3, 16, 16)).shape == (4, 2)


def test_in_bfloat16_it_learns_the_same_and_keeps_full_weights():
    full, _ = warm()
    half, seen = warm(settings=WarmupSettings(**{**vars(RECIPE), "precision": "bf16"}))
    assert seen[-1].loss < 0.8 * seen[0].loss
    assert weights(half) != weights(full)
    for ours, theirs in zip(half.networks.parameters(), full.networks.parameters(), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0.1)
