"""The published numbers against a list typed from the paper a second time, by hand and on its own."""

import pytest

from ctta.bench.experiments import BEYOND, NAMES, experiment, files, read
from ctta.corruptions import CORRUPTIONS
from ctta.data import catalogue
from ctta.errors import DataError, SettingError
from ctta.methods import find

# Gaussian Shot Impulse Defocus Glass Motion Zoom Snow Frost Fog Brightness Contrast Elastic Pixelate JPEG | Mean
TABLES = {
    ("table1", "cifar10-c"): """
        Source       | 72.3 65.7 72.9 46.9 54.3 34.8 42.0 25.1 41.3 26.0 9.3 46.7 26.6 58.5 30.3 43.5
        BN-1         | 28.1 26.1 36.3 12.8 35.3 14.2 12.1 17.3 17.4 15.3 8.4 12.6 23.8 19.7 27.3 20.4
        Tent (cont.) | 24.8 20.6 28.6 14.4 31.1 16.5 14.1 19.1 18.6 18.6 12.2 20.3 25.7 20.8 24.9 20.7
        CoTTA        | 24.3 21.3 26.6 11.6 27.6 12.2 10.3 14.8 14.1 12.4 7.5 10.6 18.3 13.4 17.3 16.2
        EcoTTA       | 23.8 18.7 25.7 11.5 29.8 13.3 11.3 15.3 15.0 13.0 7.9 11.3 20.2 15.1 20.5 16.8
        AdaContrast  | 29.1 22.5 30.0 14.0 32.7 14.1 12.0 16.6 14.9 14.4 8.1 10.0 21.9 17.7 20.0 18.5
        SFT (cont.)  | 27.7 24.1 33.8 12.2 33.1 13.1 10.9 15.9 15.6 13.8 7.8 10.8 21.2 16.6 22.9 18.6
        DSS          | 24.1 21.3 25.4 11.7 26.9 12.2 10.5 14.5 14.1 12.5 7.8 10.8 18.0 13.1 17.3 16.0
        LAW          | 24.7 18.9 25.5 12.9 26.7 15.0 11.8 15.1 14.7 15.9 10.1 13.8 19.4 14.7 18.3 17.2
        PALM         | 25.8 18.1 22.7 12.3 25.3 13.1 10.7 13.5 13.1 12.2 8.5 11.8 17.9 12.0 15.4 15.5
    """,
    ("table2", "cifar100-c"): """
        Source       | 73.0 68.0 39.4 29.3 54.1 30.8 28.8 39.5 45.8 50.3 29.5 55.1 37.2 74.7 41.2 46.4
        BN-1         | 42.1 40.7 42.7 27.6 41.9 29.7 27.9 34.9 35.0 41.5 26.5 30.3 35.7 32.9 41.2 35.4
        Tent (cont.) | 37.2 35.8 41.7 37.9 51.2 48.3 48.5 58.4 63.7 71.1 70.4 82.3 88.0 88.5 90.4 60.9
        CoTTA        | 40.1 37.7 39.7 26.9 38.0 27.9 26.4 32.8 31.8 40.3 24.7 26.9 32.5 28.3 33.5 32.5
        AdaContrast  | 42.3 36.8 38.6 27.7 40.1 29.1 27.5 32.9 30.7 38.2 25.9 28.3 33.9 33.3 36.2 33.4
        SFT (cont.)  | 40.7 36.3 37.8 25.5 39.0 27.6 25.2 32.2 30.4 37.3 23.7 26.8 32.3 27.6 37.2 32.0
        DSS          | 39.7 36.0 37.2 26.3 35.6 27.5 25.1 31.4 30.0 37.8 24.2 26.0 30.0 26.3 31.1 30.9
        LAW          | 41.0 36.7 38.3 25.6 37.0 27.8 25.2 30.7 30.0 37.3 24.4 27.6 31.2 27.8 34.9 31.7
        PALM         | 37.3 32.5 34.9 26.2 35.3 27.5 24.6 28.8 29.1 34.1 23.5 26.9 31.2 26.6 34.1 30.1
    """,
    ("table3", "imagenet-c"): """
        Source       | 97.8 97.1 98.2 81.7 89.8 85.2 78.0 83.5 77.1 75.9 41.3 94.5 82.5 79.3 68.6 82.0
        BN-1         | 85.0 83.7 85.0 84.7 84.3 73.7 61.2 66.0 68.2 52.1 34.9 82.7 55.9 51.3 59.8 68.6
        Tent (cont.) | 81.6 74.6 72.7 77.6 73.8 65.5 55.3 61.6 63.0 51.7 38.2 72.1 50.8 47.4 53.3 62.6
        CoTTA        | 84.7 82.1 80.6 81.3 79.0 68.6 57.5 60.3 60.5 48.3 36.6 66.1 47.2 41.2 46.0 62.7
        EcoTTA       | - - - - - - - - - - - - - - - 63.4
        AdaContrast  | 82.9 80.9 78.4 81.4 78.7 72.9 64.0 63.5 64.5 53.5 38.4 66.7 54.6 49.4 53.0 65.5
        SFT (cont.)  | 83.4 79.5 77.2 86.1 82.4 72.2 61.1 63.1 64.7 51.2 35.9 72.9 56.2 46.7 50.2 65.5
        DSS          | 84.6 80.4 78.7 83.9 79.8 74.9 62.9 62.8 62.9 49.7 37.4 71.0 49.5 42.9 48.2 64.6
        LAW          | 81.8 75.0 72.1 77.4 73.2 63.9 54.6 57.9 61.0 50.1 36.3 68.6 49.0 46.2 49.1 61.0
        PALM         | 81.1 73.3 70.8 77.0 71.8 62.3 53.9 56.7 60.8 50.4 36.2 65.9 48.0 45.2 48.0 60.1
    """,
}

# One number a dataset: CIFAR-10-C, CIFAR-100-C, ImageNet-C.
THREE = {
    ("gtta", "mean"): {
        "Source": (24.7, 33.6, 58.4),
        "BN-1": (13.7, 29.9, 48.3),
        "Tent (cont.)": (20.4, 74.8, 46.4),
        "CoTTA": (10.9, 26.3, 38.8),
        "AdaContrast": (12.1, 33.0, 66.3),
        "SFT (cont.)": (11.3, 25.3, 41.4),
        "LAW": (10.9, 27.2, 40.5),
        "PALM": (9.5, 26.1, 38.5),
    },
    ("adapted", "selected"): {"PALM": (4.34, 6.65, 17.21), "CoTTA": (100, 100, 100)},
    ("optimizers", "mean"): {
        "PALM": (15.5, 30.1, 60.1),
        "LARS": (18.9, 34.1, 62.0),
        "Prodigy": (20.4, 35.5, 68.6),
        "Adafactor": (73.8, 97.7, 99.2),
    },
    ("pseudo-labels", "mean"): {"Pseudo-labels": (17.9, 33.8, 68.6), "PALM": (15.5, 30.1, 60.1)},
    ("lambda", "mean"): {
        "lambda = 0": (16.8, 30.4, 63.9),
        "lambda = 0.01": (15.5, 30.1, 60.1),
        "lambda = 0.05": (16.4, 30.5, 60.3),
        "lambda = 0.1": (17.0, 30.5, 60.4),
        "lambda = 0.5": (17.6, 30.6, 60.4),
        "lambda = 1": (17.9, 30.7, 60.4),
    },
    ("forgetting", "clean_accuracy"): {
        "Source (batch statistics)": (94.03, 76.06, 75.19),
        "PALM": (92.29, 77.46, 70.87),
        "LAW": (91.67, 77.69, 71.57),
    },
}
DATASETS = ("cifar10-c", "cifar100-c", "imagenet-c")
MODELS = {"cifar10-c": ("wrn-28-10", 200), "cifar100-c": ("resnext-29", 200), "imagenet-c": ("resnet-50", 64)}
FIGURES = ("temperature", "alpha", "importance", "mixed")


@pytest.mark.parametrize(("name", "dataset"), TABLES)
def test_every_number_of_tables_1_to_3_is_the_published_one(name, dataset):
    typed = {}
    for line in TABLES[name, dataset].strip().splitlines():
        label, _, numbers = line.partition("|")
        pairs = zip((*CORRUPTIONS, "mean"), numbers.split(), strict=True)
        typed[label.strip()] = {column: float(number) for column, number in pairs if number != "-"}
    assert experiment(name).published == {dataset: typed}


@pytest.mark.parametrize(("name", "column"), THREE)
def test_every_number_of_the_other_tables_is_the_published_one(name, column):
    typed = {
        dataset: {label: {column: numbers[place]} for label, numbers in THREE[name, column].items()}
        for place, dataset in enumerate(DATASETS)
    }
    assert experiment(name).published == typed


def test_the_published_times_are_those_of_the_text():
    seconds = {"PALM": {"seconds": 0.8}, "SFT (cont.)": {"seconds": 0.45}, "LAW": {"seconds": 0.73}}
    assert experiment("cost").published == {"cifar10-c": seconds}


@pytest.mark.parametrize("name", FIGURES)
def test_what_the_paper_shows_without_numbers_has_none_and_says_so(name):
    assert not experiment(name).published
    assert experiment(name).notes[0].startswith("No published numbers")


def test_every_experiment_is_checked_here_and_every_file_is_an_experiment():
    checked = {name for name, _ in (*TABLES, *THREE)} | {"cost", *FIGURES}
    there = {file.name.removesuffix(".yaml") for file in (files("ctta.bench") / "paper").iterdir()}
    assert checked == there == set(NAMES)


def test_published_means_are_those_of_their_rows_but_for_the_two_the_notes_name():
    apart = []
    for name, dataset in TABLES:
        for label, numbers in experiment(name).published[dataset].items():
            errors = [numbers[corruption] for corruption in CORRUPTIONS if corruption in numbers]
            if errors and abs(sum(errors) / 15 - numbers["mean"]) > 0.051:
                apart.append((name, label))
                assert any(label in note and "mean" in note for note in experiment(name).notes)
    assert apart == [("table2", "PALM"), ("table3", "LAW")]


def test_our_own_experiments_have_no_published_numbers_and_say_they_are_not_in_the_paper():
    there = {file.name.removesuffix(".yaml") for file in (files("ctta.bench") / "beyond").iterdir()}
    assert there == set(BEYOND)
    for name in BEYOND:
        assert not experiment(name).published
        assert experiment(name).place == "not in the paper"


def test_the_differences_are_switched_one_at_a_time_from_what_the_code_does():
    found = experiment("differences")
    official = find("palm").resolve("cifar10-c", {})
    assert found.rows[0].label == found.reference == "official"
    seen = set()
    for line in found.rows[1:-2]:
        ((name, value),) = line.settings.items()
        assert getattr(official, name) != value
        seen.add(name)
    whole = find("palm").variants["paper"]
    assert set(whole) - seen <= {"frozen_moments", "weight_decay"}  # the first has no meaning alone
    assert [line.settings["variant"] for line in found.rows[-2:]] == ["paper", "paper-eta-c"]


@pytest.mark.parametrize("name", [*NAMES, *BEYOND])
def test_every_dataset_comes_with_the_papers_model_and_batch_size(name):
    for dataset, benchmark in experiment(name).datasets.items():
        assert (benchmark.model, benchmark.batch_size) == MODELS[dataset]
        assert catalogue.find(benchmark.model).parts[0][0].unpack == "none"
        assert catalogue.find(dataset)


@pytest.mark.parametrize("name", [*NAMES, *BEYOND])
def test_every_row_is_a_method_with_settings_it_takes_under_every_preset(name):
    for dataset in experiment(name).datasets:
        for line in experiment(name).rows_of(dataset):
            settings = find(line.method).resolve(dataset, line.settings)
            assert {key: getattr(settings, key) for key in line.settings} == line.settings


def test_rows_of_one_dataset_only_stay_there():
    assert "T = 5000" in [line.label for line in experiment("temperature").rows_of("imagenet-c")]
    assert "T = 5000" not in [line.label for line in experiment("temperature").rows_of("cifar10-c")]


def test_several_rows_may_stand_beside_one_published_row():
    lars = [line for line in experiment("optimizers").rows if line.label.startswith("LARS")]
    assert len(lars) == 4
    assert {experiment("optimizers").beside(line, "cifar10-c")["mean"] for line in lars} == {18.9}


def test_an_unknown_experiment_is_refused_with_the_nearest_name():
    with pytest.raises(SettingError, match="Did you mean `table1`"):
        experiment("tabel1")


GOOD = """
title: A table
place: Table 9
view: means
scenario: continual
datasets: {cifar10-c: {model: wrn-28-10, batch_size: 200}}
columns: [mean]
rows: [{label: PALM, method: palm}]
published: {cifar10-c: {PALM: 15.5}}
"""


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("title: A table", "", "'title'"),
        ("title: A table", "title: A table\ntiltle: x", "'tiltle'"),
        ("view: means", "view: meens", "view: expected some of corruptions"),
        ("scenario: continual", "scenario: continuous", "scenario: expected some of"),
        ("batch_size: 200", "batch: 200", "'batch'"),
        ("columns: [mean]", "columns: [average]", "columns: expected some of"),
        ("method: palm", "methode: palm", "'methode'"),
        ("method: palm", "method: palm, only: [mnist]", "only: expected some of cifar10-c"),
        ("PALM: 15.5}", "PALM: often}", "published.cifar10-c.PALM: expected numbers"),
        ("PALM: 15.5}", "PALM: [15.5, 1.0]}", "argument 2 is longer"),
        ("PALM: 15.5}", "PALM: true}", "published.cifar10-c.PALM: expected numbers"),
        ("PALM: 15.5}", "PLAM: 15.5}", "published: expected some of PALM, but got PLAM"),
        ("published: {cifar10-c", "published: {cifar-c", "published: expected some of cifar10-c"),
        ("rows: [{label: PALM, method: palm}]", "rows: []", "published: expected some of"),
        ("columns: [mean]", "columns: [mean", "flow sequence"),
    ],
)
def test_a_slip_in_a_file_is_named_by_file_and_key(old, new, key):
    assert old in GOOD
    with pytest.raises(DataError) as caught:
        read("mine", GOOD.replace(old, new), "mine.yaml")
    assert str(caught.value).startswith("mine.yaml is not an experiment (")
    assert key in str(caught.value)


def test_a_file_without_a_slip_is_read():
    assert read("mine", GOOD, "mine.yaml").published == {"cifar10-c": {"PALM": {"mean": 15.5}}}
