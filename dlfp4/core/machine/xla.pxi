# XLA: our handlers of its custom calls.

def _xla_handlers():
    """The handlers by operation and platform, as the capsules that jax.ffi.register_ffi_target takes."""
    cdef const dlfp4_xla_handler *row = dlfp4_xla_handlers()
    found = {}
    while row.name != NULL:
        found[row.name.decode()] = PyCapsule_New(<void *> row.execute, NULL, NULL)
        row += 1
    return found
