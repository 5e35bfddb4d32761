"""Files of saved state: exact, whole or absent, and no damage goes unnoticed."""

import io
import os
import resource
import subprocess
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest

import gradcomp as gc
from gradcomp import archive
from gradcomp.archive import Archive, write_archive, write_atomically

ARRAYS = {
    "a/residual/0": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a/residual/1": np.float32(-0.0).reshape(()),
    "b/second/3/64": np.zeros((0,), np.float32),
    "variables/0": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "variables/1": np.array([1.5, np.nan, 3e38], ml_dtypes.bfloat16),
    "variables/2": np.array(7, np.int64),
}


def written(metadata=None) -> bytes:
    stream = io.BytesIO()
    write_archive(stream, {"rank": 0} if metadata is None else metadata, iter(ARRAYS.items()))
    return stream.getvalue()


def opened(content: bytes) -> Archive:
    return Archive(io.BytesIO(content), "the file")


def test_what_is_written_is_read_bit_for_bit(tmp_path) -> None:
    read = opened(written({"rank": 1, "of": [2, "x"]}))
    read.verify()
    assert read.metadata == {"rank": 1, "of": [2, "x"]}
    assert read.names == set(ARRAYS)
    assert read.get("a/residual/2") is None
    np.testing.assert_array_equal(read.get("a/residual/0"), ARRAYS["a/residual/0"])
    for name, array in ARRAYS.items():
        value = read[name]
        assert value.shape == array.shape
        assert value.tobytes() == array.tobytes()
        assert value.dtype == array.dtype or value.dtype.kind == "V"


def test_numpy_opens_it_too(tmp_path) -> None:
    (tmp_path / "a.npz").write_bytes(written())
    with np.load(tmp_path / "a.npz", allow_pickle=False) as loaded:
        np.testing.assert_array_equal(loaded["a/residual/0"], ARRAYS["a/residual/0"])


def test_every_truncation_is_noticed() -> None:
    content = written()
    for size in range(0, len(content), 7):
        with pytest.raises(gc.StateError, match="the file"):
            opened(content[:size]).verify()


def test_a_flipped_bit_is_noticed_or_harmless() -> None:
    content = written()
    noticed = 0
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        try:
            read = opened(bytes(damaged))
            read.verify()
        except gc.StateError:
            noticed += 1
            continue
        assert read.metadata == {"rank": 0}
        assert read.names == set(ARRAYS)
        assert all(read[name].tobytes() == array.tobytes() for name, array in ARRAYS.items())
    assert noticed > len(content) / 2


def test_a_read_of_one_damaged_array_raises_without_verify() -> None:
    content = written()
    at = content.index(ARRAYS["a/residual/0"].tobytes())
    read = opened(content[:at] + b"\xff" + content[at + 1 :])
    with pytest.raises(gc.StateError, match="damaged"):
        read["a/residual/0"]


def test_a_newer_format_is_named(monkeypatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(archive, "FORMAT", 2)
        content = written()
    with pytest.raises(gc.StateError, match=r"format 2.*reads format 1"):
        opened(content)


def test_objects_are_never_unpickled() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("metadata.json", '{"format": 1, "metadata": {}, "arrays": ["x"]}')
        pickled = io.BytesIO()
        np.save(pickled, np.array([print], object), allow_pickle=True)
        file.writestr("x.npy", pickled.getvalue())
    with pytest.raises(gc.StateError, match="pickle"):
        opened(stream.getvalue())["x"]


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(gc.StateError, match="x does not exist"):
        Archive(tmp_path / "x", "x")


def test_it_can_be_read_after_it_was_deleted(tmp_path) -> None:
    (tmp_path / "x").write_bytes(written())
    read = Archive(tmp_path / "x", "x")
    (tmp_path / "x").unlink()
    read.verify()
    read.close()


def test_the_file_and_its_name_are_on_the_disk_before_it_returns(tmp_path, monkeypatch) -> None:
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: (done.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd))
    )
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("replace"), replace(a, b)))
    write_atomically(tmp_path / "x", lambda stream: stream.write(b"1"))
    assert done == [str(tmp_path / "x.tmp"), "replace", str(tmp_path)]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path) -> None:
    write_atomically(tmp_path / "x", lambda stream: stream.write(b"old"))

    def fail(stream) -> None:
        stream.write(b"new")
        raise KeyError("stop")

    with pytest.raises(KeyError):
        write_atomically(tmp_path / "x", fail)
    assert (tmp_path / "x").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


FULL_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
from gradcomp.archive import write_archive, write_atomically
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, unlimited[1]))
arrays = [("x", np.ones(50_000, np.float32)), ("y", np.ones(50_000, np.float32))]
try:
    write_atomically(Path(sys.argv[1]), lambda stream: write_archive(stream, {{}}, arrays))
except OSError as error:
    print("OSError", error.errno)
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)  # coverage writes its data at the exit
"""


@pytest.mark.parametrize("limit", [0, 1000, 200_000, 400_400])
def test_a_full_disk_leaves_nothing(tmp_path, limit) -> None:
    """Whether it is full at the start, in an array, or where the archive is closed."""
    import errno

    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", FULL_DISK.format(limit=limit), str(tmp_path / "x")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == f"OSError {errno.EFBIG}\n"
    assert ran.stderr == ""
    assert os.listdir(tmp_path) == []


def test_the_limits_are_where_the_test_says() -> None:
    """The last limit cuts the table at the archive's end, not an array."""
    stream = io.BytesIO()
    ones = np.ones(50_000, np.float32)
    write_archive(stream, {}, [("x", ones), ("y", ones)])
    assert 2 * ones.nbytes + 300 < 400_400 < len(stream.getvalue())
    assert resource.RLIMIT_FSIZE is not None
