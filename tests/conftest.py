"""What every test shares: quiet TensorFlow, and no settings inherited from the shell."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before anything imports TensorFlow
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
for name in [name for name in os.environ if name.startswith(("GRADCOMP_", "HOROVOD_"))]:
    del os.environ[name]
