"""From words or YAML to cells: every axis, every wrong key, and the estimate."""

import textwrap

import pytest
from tests.bench_kit import write_model

from ctta.bench.plan import from_words, from_yaml, tasks
from ctta.errors import SettingError


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path)


def test_every_axis_takes_several_values_and_methods_vary_fastest():
    cells = from_words(
        {
            "dataset": "embedded,cifar10",
            "model": "a.py:make,b.py:make",
            "scenario": "continual,gradual",
            "seeds": "0-1",
            "methods": "source,tent",
        }
    )
    assert len(cells) == 2 * 2 * 2 * 2 * 2
    assert [cell.method for cell in cells[:4]] == ["source", "tent", "source", "tent"]
    assert [cell.seed for cell in cells[:4]] == [0, 0, 1, 1]
    assert [cell.model for cell in cells[:16]] == ["a.py:make"] * 8 + ["b.py:make"] * 8
    assert {(cell.data, cell.model, cell.scenario, cell.seed, cell.method) for cell in cells} == {
        (data, model, setting, seed, method)
        for data in ("embedded", "cifar10")
        for model in ("a.py:make", "b.py:make")
        for setting in ("continual", "gradual")
        for seed in (0, 1)
        for method in ("source", "tent")
    }


def test_words_and_yaml_give_the_same_cells(tmp_path):
    file = tmp_path / "grid.yaml"
    file.write_text(
        textwrap.dedent("""
        dataset: embedded
        methods: [tent, palm]
        scenario: recurring
        seeds: [0, 3]
        images: 40
        batch-size: 20
        severity: 3
        corruptions: [fog, contrast]
        clean: 10
        precision: bf16
        set: {tent: {lr: 1e-3}, palm.variant: paper}
        stream: {passes: 2}
        """)
    )
    words = {
        "dataset": "embedded",
        "methods": "tent,palm",
        "scenario": "recurring",
        "seeds": "0,3",
        "images": 40,
        "batch_size": 20,
        "severity": 3,
        "corruptions": "fog,contrast",
        "clean": 10,
        "precision": "bf16",
        "set": ("tent.lr=1e-3", "palm.variant=paper"),
        "stream": ("passes=2",),
    }
    cells = from_yaml(file)
    assert cells == from_words(words)
    assert cells[0].settings == {"lr": 0.001}  # YAML itself takes 1e-3 for a word
    assert cells[1].settings == {"variant": "paper"}
    assert cells[0].stream == {"passes": 2}
    assert {cell.precision for cell in cells} == {"bf16"}
    assert from_words({"methods": "tent"})[0].precision == "full"
    assert from_yaml(file, seeds="7")[0].seed == 7


def test_one_method_may_come_twice_under_two_labels_with_models_and_weights_of_their_own(tmp_path):
    file = tmp_path / "grid.yaml"
    file.write_text(
        textwrap.dedent("""
        model: [{model: wrn-16-2, weights: w.safetensors}, "own.py:make"]
        methods:
          - palm
          - {method: palm, label: palm T=100, preset: cifar10-c, set: {temperature: 100}}
        """)
    )
    cells = from_yaml(file)
    assert [(cell.model, cell.weights) for cell in cells[::2]] == [
        ("wrn-16-2", "w.safetensors"),
        ("own.py:make", None),
    ]
    assert [cell.name for cell in cells[:2]] == ["palm", "palm T=100"]
    assert (cells[1].preset, cells[1].settings) == ("cifar10-c", {"temperature": 100})


def test_without_a_preset_a_method_takes_that_of_the_dataset_and_none_takes_the_defaults():
    assert [c.preset for c in from_words({"dataset": "cifar10-c,cifar10,cifar100", "methods": "palm"})] == [
        "cifar10-c",
        "cifar10-c",
        "cifar100-c",
    ]
    assert from_words({"dataset": "tiny-imagenet-c", "methods": "palm"})[0].preset is None
    assert from_words({"dataset": "cifar10-c", "methods": "palm", "preset": "none"})[0].preset is None
    assert from_words({"methods": "palm", "preset": "imagenet-c"})[0].preset == "imagenet-c"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"metods": "palm"}, "unknown key `metods`. Did you mean `methods`? Accepted: dataset, model, "),
        ({"images": 0}, "expected `images` to be a whole number of at least 1, but got 0"),
        ({"images": True}, "`images`"),
        ({"severity": 6}, "`severity` to be a whole number from 1 to 5, but got 6"),
        ({"batch_size": "many"}, "`batch_size`"),
        ({"precision": "fp16"}, "expected `precision` to be full or bf16, but got 'fp16'"),
        ({"precision": ["full", "bf16"]}, "expected `precision` to be full or bf16"),
        ({"seeds": "one"}, "`seeds`"),
        ({"seeds": "3-1"}, "`seeds`"),
        ({"seeds": -1}, "`seeds`"),
        ({"methods": []}, "`methods`"),
        ({"methods": 3}, "`methods`"),
        ({"methods": [{"method": "palm", "lable": "x"}]}, "key of a method `lable`. Did you mean `label`?"),
        ({"methods": [{"label": "x"}]}, "expected a method's name"),
        ({"methods": ["palm", {"method": "palm", "set": {"lr": 0.1}}]}, "two different methods are called `palm`"),
        ({"methods": "plam"}, "There is no method `plam`. Did you mean `palm`?"),
        ({"model": [{"modl": "x"}]}, "key of a model `modl`"),
        ({"model": [{"weights": "x"}]}, "expected a model's name"),
        ({"model": "a,b", "weights": "w"}, "`weights` belongs to one model, but there are 2"),
        ({"setting": "continual"}, "`setting`, the kind of stream, is called `scenario` now: rename it"),
        ({"scenario": "continal"}, "unknown scenario `continal`. Did you mean `continual`?"),
        ({"stream": {"passes": 2}}, "`passes` is an option of recurring, not of continual"),
        ({"stream": {"pases": 2}}, "unknown stream option `pases`"),
        ({"stream": ["passes"]}, "`stream`"),
        ({"set": ["palm.lr"]}, "`set` to be METHOD.SETTING=VALUE"),
        ({"set": ["lr=1"]}, "`set`"),
        ({"set": ["cotta.lr=1"], "methods": "palm"}, "`cotta`, which is none of its methods: palm"),
        ({"set": ["palm.learning=1"], "methods": "palm"}, "palm has no setting `learning`"),
        ({"set": ["palm.lr=-1"], "methods": "palm"}, "Expected `lr`"),
        ({"preset": "cifar", "methods": "palm"}, "palm has no preset `cifar`"),
        ({"weights": ""}, "`weights`"),
    ],
)
def test_a_wrong_word_is_named_with_what_is_accepted(words, message):
    with pytest.raises(SettingError) as caught:
        from_words(words)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"), [("a: [", "is not YAML"), ("- palm", "keys: dataset"), (None, "read")]
)
def test_a_file_that_is_no_grid_is_refused(text, message, tmp_path):
    file = tmp_path / "grid.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SettingError, match=message):
        from_yaml(file)


def test_the_estimate_is_batches_times_the_cost_of_the_method_and_counts_forgetting(model):
    def estimate(**words):
        fixed = {"model": model, "images": 25, "batch_size": 10, "corruptions": "contrast,brightness"}
        return [task.passes for task in tasks(from_words({**fixed, **words}))]

    assert estimate(methods="source,tent,palm") == [6 * 1.0, 6 * 2.0, 6 * 8.0]
    # 20 clean images are two batches, under two statistics, after two domains; once where domains are mixed
    assert estimate(methods="source", clean=20) == [6 + 2 * 2 * 2]
    assert estimate(methods="source", clean=20, scenario="mixed") == [5 + 2 * 2]


def test_cells_that_are_one_in_other_words_are_one_task(model):
    words = {"model": model, "images": 10, "batch_size": 10, "corruptions": "contrast"}
    methods = ["tent", {"method": "tent", "label": "again", "set": {"lr": 0.001}}]
    cells = from_words({**words, "methods": methods, "set": {"tent": {"lr": 0.001}}})
    assert len(cells) == 2
    assert [task.cell.name for task in tasks(cells)] == ["tent"]
    assert [(task.batches, task.samples) for task in tasks(cells)] == [(1, 10)]
