// Nothing: only the name of this library is wanted, as a dependency of _ops.so.
