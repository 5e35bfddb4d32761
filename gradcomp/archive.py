"""A file of named arrays with metadata: written whole or not at all, and damage is noticed.

It is an uncompressed `.npz`, which `numpy.load` opens too, with `metadata.json` beside the arrays.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np

from gradcomp._version import __version__
from gradcomp.errors import StateError

FORMAT = 1

_METADATA = "metadata.json"


class Archive:
    """Reads arrays one by one, so that a large file never lies in memory as a whole.

    The file stays open until `close`: it can be read although it was deleted meanwhile.

    Attributes:
      name: of the file, for messages.
      metadata: what was given to `write_archive`.

    Raises:
      StateError: here and in every method, where the content is damaged or of a newer format.
    """

    def __init__(self, source: Path | IO[bytes], name: str) -> None:
        self.name = name
        self._zip: zipfile.ZipFile = self._guarded(lambda: zipfile.ZipFile(source))
        try:
            content = self._guarded(lambda: json.loads(self._zip.read(_METADATA)))
            found = self._guarded(lambda: content["format"])
            if found != FORMAT:
                raise StateError(
                    f"{name} has format {found!r}, written by gradcomp "
                    f"{content.get('gradcomp')}; this gradcomp {__version__} reads format {FORMAT}"
                )
            self.metadata: dict[str, Any] = self._guarded(lambda: content["metadata"])
            self._arrays = self._guarded(lambda: frozenset(content["arrays"]))
        except StateError:
            self.close()
            raise

    def get(self, array: str) -> np.ndarray | None:
        """The array, or None where there is none of that name."""
        return self[array] if array in self._arrays else None

    def __getitem__(self, array: str) -> np.ndarray:
        def read() -> np.ndarray:
            with self._zip.open(f"{array}.npy") as entry:
                value: np.ndarray = np.lib.format.read_array(entry, allow_pickle=False)
                entry.read()  # checksums are compared at the end of an entry
                return value

        return self._guarded(read)

    @property
    def names(self) -> frozenset[str]:
        """Of all arrays."""
        return self._arrays

    def verify(self) -> None:
        """Reads everything once and compares it with its checksums."""
        entries = set(self._zip.namelist())
        for array in self._arrays:
            if f"{array}.npy" not in entries:
                raise StateError(f"{self.name} is damaged: {array} is missing")
        damaged = self._guarded(self._zip.testzip)
        if damaged is not None:
            raise StateError(f"{self.name} is damaged: {damaged} does not fit its checksum")

    def close(self) -> None:
        """Nothing can be read any more."""
        self._zip.close()

    def _guarded(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except StateError:
            raise
        except FileNotFoundError:
            raise StateError(f"{self.name} does not exist") from None
        except Exception as error:  # damaged bytes make zipfile and NumPy raise almost anything
            told = f"{type(error).__name__}: {error}"
            raise StateError(f"{self.name} can't be read; it is damaged ({told})") from error


def write_archive(
    stream: IO[bytes], metadata: dict[str, Any], arrays: Iterable[tuple[str, np.ndarray]]
) -> None:
    """Writes `metadata`, plain values for JSON, and the arrays, each taken when its turn comes."""
    names = []
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays:
            names.append(name)
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(array, order="C"), allow_pickle=False)
        content = {
            "format": FORMAT,
            "gradcomp": __version__,
            "arrays": names,
            "metadata": metadata,
        }
        archive.writestr(zipfile.ZipInfo(_METADATA), json.dumps(content))


def write_atomically(file: Path, fill: Callable[[IO[bytes]], None]) -> None:
    """Makes `file` of what `fill` writes: after a crash at any time it is there as a whole or not.

    Raises:
      OSError: it can't be written; nothing is left of it.
    """
    temporary = file.with_name(f"{file.name}.tmp")
    try:
        with temporary.open("wb") as stream:
            fill(stream)
            stream.flush()
            # Without it a power failure may leave a name without its content.
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Makes the folder's names outlast a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
