"""Floating-point modes: TensorFlow's threads flush subnormals to zero, and codecs must not."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def default_float_mode() -> Iterator[None]:
    """Runs the block in C's default mode, subnormals included, and restores the thread's own."""
    import ctypes

    libm = ctypes.CDLL(None)
    own = ctypes.create_string_buffer(64)  # room for any platform's fenv_t
    libm.fegetenv(own)
    libm.fesetenv(ctypes.c_void_p(-1))  # FE_DFL_ENV of glibc and musl
    try:
        yield
    finally:
        libm.fesetenv(own)
