"""CIFAR files as Python 2 and every numpy wrote them, and files made to make an unpickler do harm."""

import struct

import numpy as np
import pytest

from ctta.data import cifar, plain_pickle
from ctta.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (2, 3072)).astype(np.uint8)
BYTES = PIXELS.tobytes()


def word(text):
    return b"U" + bytes([len(text)]) + text.encode("latin1")


def text(value):
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def long(data):
    return b"T" + struct.pack("<I", len(data)) + data


def name(module, thing):
    return f"c{module}\n{thing}\n".encode()


START = b"K\0\x85U\x01b\x87R"
UINT8 = (
    name("numpy", "dtype") + word("u1") + b"K\0K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
)
SHAPE = b"K\x02M\0\x0c\x86"


def array(package="numpy.core", dtype=UINT8, shape=SHAPE, data=BYTES):
    """An array as Python 2's cPickle wrote it in protocol 2."""
    head = name(f"{package}.multiarray", "_reconstruct") + name("numpy", "ndarray") + START
    return head + b"(K\x01" + shape + dtype + b"\x89" + long(data) + b"tb"


def batch(pixels, labels=b"](K\x03K\x07e", key="labels", write=word):
    return b"\x80\x02}(" + write("data") + pixels + write(key) + labels + b"u."


def read(tmp_path, data, key="labels"):
    (tmp_path / "test_batch").write_bytes(data)
    return cifar.read_pickle(tmp_path / "test_batch", key)


@pytest.mark.parametrize("package", ["numpy.core", "numpy._core"])
@pytest.mark.parametrize(("key", "write"), [("labels", word), ("fine_labels", text)])
def test_files_are_read_as_python_2_and_old_and_new_numpy_wrote_them(tmp_path, package, key, write):
    images, labels = read(tmp_path, batch(array(package), key=key, write=write), key)
    assert np.array_equal(images.transpose(0, 3, 1, 2).reshape(2, -1), PIXELS)
    assert labels.tolist() == [3, 7]


def test_keys_and_pixels_may_be_bytes_as_python_3_writes_them_in_protocol_2(tmp_path):
    def encoded(value):
        return name("_codecs", "encode") + text(value) + text("latin1") + b"\x86R"

    pixels = array().replace(long(BYTES), encoded(BYTES.decode("latin1")))
    images, _ = read(tmp_path, batch(pixels, write=encoded))
    assert np.array_equal(images.transpose(0, 3, 1, 2).reshape(2, -1), PIXELS)


def lying_dtype():
    """A record of one object that says it holds none, an array full of bytes, then the truth."""

    def state(flags):
        object_type = name("numpy", "dtype") + word("O8") + b"K\0K\x01\x87R"
        fields = b"}" + word("a") + object_type + b"K\0\x86s"
        return (
            b"(K\x03" + word("|") + b"N" + word("a") + b"\x85" + fields + b"K\x08K\x01K" + bytes([flags]) + b"tb"
        )

    record = name("numpy", "dtype") + word("V8") + b"K\0K\x01\x87Rq\x01" + state(0) + b"0"
    filled = array(dtype=b"h\x01", shape=b"K\x10\x85", data=b"A" * 128)
    return b"\x80\x02}" + word("data") + record + filled + b"h\x01" + state(63) + b"0s."


def nest(depth):
    return b"K\0" + b"\x85" * depth


BOMBS = {
    "a record dtype whose flags lie": lying_dtype(),  # it once ended the process, at an address of its choice
    "a shape far beyond its bytes": batch(array(shape=b"\x8a\x05\0\0\0\0\x40K\x01\x86")),
    "a shape beyond any number": batch(array(shape=b"\x8a\x20" + b"\x7f" * 32 + b"K\0\x86")),
    "a negative side": batch(array(shape=b"J\xfe\xff\xff\xffJ\0\xf4\xff\xff\x86")),
    "a side that is no number": batch(array(shape=b"U\x012M\0\x0c\x86")),
    "fewer bytes than its shape": batch(array(data=b"A" * 100)),
    "an array of objects": batch(array(dtype=UINT8.replace(b"u1", b"O8"))),
    "an array of records": batch(array(dtype=UINT8.replace(b"U\x01|N", b"U\x01|" + UINT8))),
    "a dtype with flags": batch(array(dtype=UINT8[:-3] + b"K\x3ftb")),
    "a nest of tuples as a key": b"\x80\x02}" + nest(100_000) + b"K\0s.",
    "a nest of tuples as labels": batch(array(), nest(10_000)),
    "a nest of tuples as a state": b"\x80\x02" + UINT8[:-2] + nest(10_000) + b"tb.",
    "a list that holds itself": batch(array(), b"]q\x01h\x01a"),
    "a billion lists": batch(
        array(), b"]q\x00" + b"".join(b"](" + b"h%c" % i * 10 + b"eq%c" % (i + 1) for i in range(12))
    ),
    "a memo of 32 GB": b"\x80\x02K\0r\xff\xff\xff\xff.",
    "a text of 4 GB": b"\x80\x02X\xff\xff\xff\xff",
    "bytes of 9 exabytes": b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f.",
    "a state for a name": b"\x80\x02" + name("numpy", "dtype") + b"}" + word("type") + b"K\0sb.",
    "a state for a name with slots": b"\x80\x02"
    + name("_codecs", "encode")
    + b"N}"
    + word("__call__")
    + b"K\0s\x86b.",
    "a state for a dict": b"\x80\x02}}b.",
    "an instance": b"\x80\x02" + name("numpy", "ndarray") + b")\x81.",
    "an old instance": b"\x80\x02(inumpy\nndarray\n.",
    "a call of another name": b"\x80\x02" + name("os", "system") + word("true") + b"\x85R.",
    "a call of a submodule's name": b"\x80\x02" + name("numpy", "core.multiarray._reconstruct") + b")R.",
    "a call of a value": b"\x80\x02K\x01)R.",
    "a persistent id": b"\x80\x02K\x01Q.",
    "an extension": b"\x80\x02\x82\x01.",
    "a buffer from outside": b"\x80\x05\x97.",
    "a codec of its choice": b"\x80\x02" + name("_codecs", "encode") + word("a") + word("zlib") + b"\x86R.",
    "nothing on the stack": b"\x80\x02.",
    "a lone mark": b"\x80\x02(.",
    "no end": b"\x80\x02K\x01",
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS)
def test_a_crafted_pickle_is_refused(tmp_path, data):
    with pytest.raises(DataError, match="test_batch"):
        read(tmp_path, data)


def test_no_name_of_a_file_is_looked_up():
    """Values of a file are plain: whatever it asks for comes as one of ours, or is refused."""
    assert plain_pickle.load(b"\x80\x02" + name("numpy", "dtype") + b".") == plain_pickle.Name("dtype")
    assert plain_pickle.load(b"\x80\x02" + UINT8 + b".") == plain_pickle.UINT8
    assert isinstance(plain_pickle.load(b"\x80\x02" + array() + b"."), plain_pickle.Parts)
