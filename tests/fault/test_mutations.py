"""Every kind of file the library reads, damaged at random: it is read or refused by a typed error, nothing else.

More by hand: CTTA_MUTATIONS=20000 CTTA_SEED=1 pytest tests/fault/test_mutations.py
"""

import contextlib
import functools
import gzip
import io
import json
import os
import pickle
import random
import struct
import tarfile
import traceback
import warnings
import zipfile
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from ctta._core import checkpoint
from ctta._core.files import parsing
from ctta._core.learnt import fingerprint
from ctta.bench import archive
from ctta.bench.plan import from_yaml
from ctta.data import cifar, cifar10_c, drive, image_folder, npm, read_ids
from ctta.data.cache import Digests
from ctta.data.catalogue import Archive, Member
from ctta.data.pixels import read_image
from ctta.data.unpack import unpack
from ctta.errors import CttaError, DataError
from ctta.methods.ecotta import ecotta
from ctta.models import read_weights, zoo
from ctta.models.weights import load_strictly

COUNT, SEED = int(os.environ.get("CTTA_MUTATIONS", "1036")), int(os.environ.get("CTTA_SEED", "0"))
RNG = np.random.default_rng(0)
NET = functools.partial(torch.nn.Linear, 3, 2)
SOURCE = NET()
STATE = SOURCE.state_dict()
MEMBER = RNG.bytes(300)
KEPT = Path(__file__).parents[2] / "benchmarks" / "evidence" / "continual-source-full.jsonl"


# --- whole files ------------------------------------------------------------------------------------------------


def saved(write, *arguments, **options):
    buffer = io.BytesIO()
    write(*arguments, buffer, **options)
    return buffer.getvalue()


def npy(array):
    return saved(lambda file: np.save(file, array))


def png(rows):
    def part(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width, _ = rows.shape
    raw = b"".join(bytes([y % 5]) + row.tobytes() for y, row in enumerate(rows))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", zlib.compress(raw)) + part(b"IEND", b"")


def picture(form):
    from PIL import Image

    return saved(lambda file: Image.fromarray(RNG.integers(0, 256, (9, 8, 3)).astype(np.uint8)).save(file, form))


def tar(files, form=tarfile.PAX_FORMAT):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1.5  # a half second takes an extended header
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


BATCH = {"data": RNG.integers(0, 256, (2, 3072)).astype(np.uint8), "labels": [3, 7], "filenames": ["a", "b"]}
ROWS = RNG.integers(0, 256, (2, 1024, 3)).astype(np.uint8)
NOTE = {
    "dataset": "cifar10-c",
    "images": 2,
    "severities": [3, 5],
    "seed": 0,
    "source": "ab",
    "version": "1",
    "files": {"fog.npy": {"md5": "00", "state": "partial"}},
}
PAGE = (
    b'<html><form id="download-form" action="/download"><input name="id" value="1"></form>'
    b'<a href="/uc?confirm=1">go</a><![CDATA[x]]></html>'
)
PLAN = b"""dataset: embedded
model: [{model: 'embedded:'}]
methods: [tent, palm]
seeds: &one [1, 2]
images: 100
set: {palm.refresh: 2, tent: {lr: 1e-3}}
batch_size: 20
"""


def adapter_file(header, tensors=STATE):
    """A file with the right checksum, whatever its header says."""
    text = header.decode("utf-8", "replace")
    return save(dict(tensors), {"ctta": text, "sha256": checkpoint.digest(tensors, text)})


MADE = {"kind": ecotta.WARM_UP.kind, "source": fingerprint(SOURCE), "model": "M", "parts": 2, "format": 1}
WARM_UP = json.dumps(MADE).encode()


# --- readers ----------------------------------------------------------------------------------------------------


def read_corrupted(path):
    fog = cifar10_c("fog", 5, path.parent)
    return fog.images([0, 1]), fog.labels, fog.hash


ONE = Archive("set.tar", (), "a", Digests(), members=(Member("one.bin", Digests(len(MEMBER))),))
FOG = Archive("set.tar", (), "b", Digests(), corruptions=("fog",))


def files_of(path):
    unpack(ONE, path, path.parent)


def folders_of(path):
    unpack(FOG, path, path.parent)


def read_package(path):
    return list(npm.repack(path))


def read_labels(path):
    (path.parent / "test_batch.png").write_bytes(png(ROWS))
    return npm.read_batch(path.parent, "test_batch")


def weights(path):
    load_strictly(NET(), read_weights(path), str(path))


def read_beside_weights(path):
    path.with_suffix(".safetensors").write_bytes(save(STATE))
    return zoo.load(f"file:{path.with_suffix('.safetensors')}")


def warm_up(path):
    ecotta.WARM_UP.read(ecotta.EcottaSettings(warmup=str(path)), SOURCE)


def tiny(path):
    (path.parent / "images").mkdir(exist_ok=True)
    (path.parent / "images" / "a.png").write_bytes(png(ROWS[:, :8]))
    return image_folder(path.parent).hash


def pictures(path):
    return [read_image(path, how) for how in ("as-is", "resize64", "resize256-crop224")]


def page(path):
    return drive.confirmed(path.read_text("utf-8", "replace"), "https://drive.google.com/uc?id=1")


# --- kinds: name of the file, its bytes, its reader, and how mutated bytes are packed (a checksum made right) ----


def as_is(data):
    return data


def in_zip(data):
    """The pickle of a torch file, changed, in a file otherwise whole."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(TORCH)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            new.writestr(name, data if name.endswith("data.pkl") else old.read(name))
    return buffer.getvalue()


def with_right_sums(data):
    """A PNG file whose parts' checksums are right whatever is in them."""
    out, place = data[:8], 8
    while place + 12 <= len(data):
        length = struct.unpack_from(">I", data, place)[0]
        body = data[place + 4 : place + 8 + length]
        out += data[place : place + 4] + body + struct.pack(">I", zlib.crc32(body))
        place += length + 12
    return out


TORCH = saved(torch.save, STATE)
with zipfile.ZipFile(io.BytesIO(TORCH)) as inside:
    TORCH_PICKLE = inside.read(next(name for name in inside.namelist() if name.endswith("data.pkl")))
FILES = {"top/one.bin": MEMBER, "fog/1/n01/a.JPEG": b"a", "in.tar": tar({"fog/2/n01/b.JPEG": b"b"})}
PACKAGE = {f"package/{name}.png": png(ROWS) for name in npm.BATCHES}
PACKAGE |= {f"package/{name}": b"[1, 2, 3, 4, 5, 6, 7, 8, 9, 0]" for name in npm.LABELS.values()}
FOLDER = {
    "fog.npy": npy(RNG.integers(0, 256, (4, 32, 32, 3)).astype(np.uint8)),
    "labels.npy": npy(np.array([1, 2, 1, 2], np.uint8)),
    "ctta-made.json": json.dumps(NOTE).encode(),
}

KINDS = {
    "npy images": ("fog.npy", FOLDER["fog.npy"], read_corrupted, as_is),
    "npy labels": ("labels.npy", FOLDER["labels.npy"], read_corrupted, as_is),
    "manifest": ("ctta-made.json", FOLDER["ctta-made.json"], read_corrupted, as_is),
    **{f"pickle {p}": ("test_batch", pickle.dumps(BATCH, p), cifar.read_pickle, as_is) for p in (2, 4, 5)},
    "binary": ("test_batch.bin", bytes(3073), cifar.read_binary, as_is),
    "png": ("a.png", png(ROWS), read_image, as_is),
    "png with right checksums": ("a.png", png(ROWS[:, :8]), pictures, with_right_sums),
    **{form: (f"a.{form}", picture(form), pictures, as_is) for form in ("jpeg", "bmp", "webp", "ppm", "tiff")},
    "tar of files": ("set.tar", tar(FILES), files_of, as_is),
    "tar of folders": ("set.tar", tar(FILES), folders_of, as_is),
    "gnu tar": ("set.tar", tar({"x" * 120 + "/one.bin": MEMBER}, tarfile.GNU_FORMAT), files_of, as_is),
    "tar.gz": ("set.tar", gzip.compress(tar(FILES)), folders_of, as_is),
    "tar in gz": ("set.tar", tar(FILES), files_of, functools.partial(gzip.compress, compresslevel=1)),
    "npm package": ("set.tgz", tar(PACKAGE), read_package, as_is),
    "npm labels": ("test_lables.json", b"[1, 2, 3, -4, 5e1]", read_labels, as_is),
    "torch zip": ("w.pt", TORCH, weights, as_is),
    "torch pickle in zip": ("w.pt", TORCH_PICKLE, weights, in_zip),
    "torch legacy": ("w.pt", saved(torch.save, STATE, _use_new_zipfile_serialization=False), weights, as_is),
    "safetensors": ("w.safetensors", save(STATE), weights, as_is),
    "manifest of weights": (
        "w.json",
        b'{"arch": "wrn-16-2", "recipe": {"lr": [0.1, 2]}}',
        read_beside_weights,
        as_is,
    ),
    "warm-up": ("warm.safetensors", adapter_file(WARM_UP), warm_up, as_is),
    "yaml": ("plan.yaml", PLAN, from_yaml, as_is),
    "kept reproduction": ("rows.jsonl", KEPT.read_bytes(), archive.read, as_is),
    "list of images": ("ids.txt", b"n01/a.JPEG\nn02/b.JPEG\n", read_ids, as_is),
    "tiny list": ("val_annotations.txt", b"a.png\tn01\t0\t0\t1\t1\n", tiny, as_is),
    "page": ("page.html", PAGE, page, as_is),
}


OTHERS = {"manifest of weights": "does not fit", "npm labels": "integer"}
"""Whole files of these kinds are read and then refused for what they hold."""

# --- mutations --------------------------------------------------------------------------------------------------

PIECES = [
    *(b"(", b"[", b"{", b"}", b"]", b")", b"'", b'"', b"\\", b",", b":", b"-", b"&a *a", b"!!python/name:a"),
    *(
        b"\0",
        b"\xff\xff\xff\xff",
        b"9" * 30,
        b"1e999",
        b"-1",
        b"None",
        b"null",
        b"[" * 3000,
        b"/",
        b"..",
        b"\x80\x02",
    ),
]


def mutate(data, random):
    """Change a few places, most of them near the start, where headers are."""
    damaged = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        limit = len(damaged) if random.random() < 0.4 else min(len(damaged), 200)
        place = random.randrange(limit) if limit else 0
        match random.randrange(8):
            case 0 if damaged:
                damaged[place] ^= 1 << random.randrange(8)
            case 1 if damaged:
                damaged[place] = random.randrange(256)
            case 2:
                del damaged[place:]
            case 3:
                del damaged[place : place + random.choice((1, 4, 100))]
            case 4:
                damaged[place:place] = random.choice(PIECES)
            case 5:
                piece = random.choice(PIECES)
                damaged[place : place + len(piece)] = piece
            case 6:
                start = random.randrange(len(damaged) + 1)
                damaged[place:place] = damaged[start : start + random.choice((1, 8, 512))]
            case _:
                places = [k for k, byte in enumerate(damaged[:4000]) if byte in b"0123456789()[]{}'\","]
                if places:
                    damaged[random.choice(places)] = random.choice(b"0123456789()[]{}'\",")
    return bytes(damaged)


def test_whole_files_are_read(tmp_path):
    """Else no mutation would get far."""
    for kind, (name, data, reader, pack) in KINDS.items():
        folder = tmp_path / kind
        folder.mkdir()
        for other, content in FOLDER.items():
            (folder / other).write_bytes(content)
        (folder / name).write_bytes(pack(data))
        fits = contextlib.nullcontext() if kind not in OTHERS else pytest.raises(CttaError, match=OTHERS[kind])
        with fits:
            reader(folder / name)


def test_a_damaged_file_of_any_kind_is_read_or_refused_by_a_typed_error(tmp_path):
    found, refused = Counter(), Counter()
    for turn in range(COUNT):
        kind = list(KINDS)[turn % len(KINDS)]
        name, data, reader, pack = KINDS[kind]
        folder = tmp_path / str(turn % len(KINDS))
        folder.mkdir(exist_ok=True)
        for other, content in FOLDER.items() if name in FOLDER else ():
            (folder / other).write_bytes(content)
        (folder / name).write_bytes(pack(mutate(data, random.Random(f"{SEED}/{turn}"))))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                reader(folder / name)
        except CttaError:
            refused[kind] += 1
        except Exception as error:  # noqa: BLE001 - this is what is looked for
            last = traceback.extract_tb(error.__traceback__)[-1]
            found[f"{kind}: {type(error).__name__} {error} ({last.name}, turn {turn})"[:200]] += 1
    assert not found, "\n".join(map(str, found.most_common(30)))
    assert all(refused[kind] for kind in KINDS if kind != "page"), "some mutations must do harm"


@pytest.mark.parametrize("raised", [StopIteration(), KeyError("a"), RecursionError("deep"), AssertionError()])
def test_whatever_a_parser_raises_is_said_in_words(raised):
    words = r"The file is damaged \(.+\)\. Fetch it again\."
    with pytest.raises(DataError, match=words), parsing("The file is damaged", "Fetch it again."):
        raise raised
