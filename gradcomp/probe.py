"""Imports one library and prints what it finds as a line of JSON: `python -m gradcomp.probe NAME`.

A broken library may abort the process or hang it: `gradcomp doctor` runs each probe as a process.
The line has an "absent", an "unsupported" or an "error" where there is something wrong.
"""

from __future__ import annotations

import importlib
import json
import resource
import statistics
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from gradcomp.errors import MissingDependencyError

Facts = dict[str, Any]
_LARGE = 64 << 20  # bytes of a tensor; glibc's malloc keeps freed blocks of up to 32 MiB


def native() -> Facts:
    """The pybind11 module with the CPU kernels."""
    module = importlib.import_module("gradcomp._native")
    return {"path": module.__file__}


def cuda() -> Facts:
    """The pybind11 module with the CUDA kernels, and the GPUs it sees."""
    module = importlib.import_module("gradcomp._cuda")
    count, why = module.devices()
    return {"runtime": module.runtime_version(), "gpus": count, "why": why}


def tensorflow() -> Facts:
    """TensorFlow, its Keras, its GPUs, and whether gradcomp's ops and GPU kernels load in it."""
    tf = importlib.import_module("tensorflow")
    facts: Facts = {"version": tf.__version__}

    def load() -> Facts:
        libraries = importlib.import_module("gradcomp.kernels.libraries")
        try:
            libraries.import_tensorflow()
        except MissingDependencyError as error:
            return {"unsupported": str(error)}
        libraries.load_ops()
        gpu = importlib.import_module("gradcomp.kernels.gpu").loading()
        gpus = len(tf.config.list_physical_devices("GPU"))
        return {
            "keras": tf.keras.__version__,
            "gpus": gpus,
            "gpu_kernels": gpu._asdict(),
            "new_memory": _new_memory(tf),
        }

    return facts | _guarded(load)


def horovod() -> Facts:
    """Horovod, the TensorFlow it was built for, and how its processes can talk."""
    package = importlib.import_module("horovod")
    facts: Facts = {"version": metadata.version("horovod")}

    def load() -> Facts:
        libraries = Path(str(package.__file__)).with_name("metadata.json")
        built_for = json.loads(libraries.read_text()).get("tensorflow", "no TensorFlow")
        hvd = importlib.import_module("horovod.tensorflow")
        carriers = [name for name in ("gloo", "mpi", "nccl") if getattr(hvd, f"{name}_built")()]
        return {"built_for": built_for, "carriers": carriers}

    return facts | _guarded(load)


PROBES: dict[str, Callable[[], Facts]] = {
    "native": native,
    "cuda": cuda,
    "tensorflow": tensorflow,
    "horovod": horovod,
}
MODULES = {
    "native": "gradcomp._native",
    "cuda": "gradcomp._cuda",
    "tensorflow": "tensorflow",
    "horovod": "horovod",
}


def _new_memory(tf: Any) -> float:
    """What part of a large CPU tensor's pages the system has to bring anew at every step."""
    faults = []
    with tf.device("CPU:0"):
        x = tf.ones([_LARGE // 4])
        for _ in range(7):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            x = x * 2.0
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    # The first ones are new in any case.
    return statistics.median(faults[2:]) * resource.getpagesize() / _LARGE


def _guarded(step: Callable[[], Facts]) -> Facts:
    try:
        return step()
    except Exception as error:  # whatever it is, the doctor has to show it
        return {"error": f"{type(error).__name__}: {error}"}


def main(name: str) -> None:
    """Prints the facts about `name`, a key of PROBES."""
    try:
        facts = PROBES[name]()
    except ModuleNotFoundError as error:
        absent = error.name == MODULES[name]
        facts = {"absent": True} if absent else {"error": f"{type(error).__name__}: {error}"}
    except Exception as error:
        facts = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1])
