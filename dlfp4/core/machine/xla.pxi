# XLA: our handlers of its custom calls.

def _xla_handlers(str platform):
    """The handlers of "cpu" or "CUDA" by operation: what jax.ffi.register_ffi_target takes, a capsule a stage."""
    cdef const dlfp4_xla_handler *row = dlfp4_xla_handlers() if platform == "cpu" else dlfp4_xla_handlers_of_cuda()
    found = {}
    while row.name != NULL:
        stages = {"execute": PyCapsule_New(<void *> row.execute, NULL, NULL)}
        if row.initialize != NULL:
            stages["initialize"] = PyCapsule_New(<void *> row.initialize, NULL, NULL)
        found[row.name.decode()] = stages
        row += 1
    return found


def _load_kernels(int device):
    """Load what the handlers launch on a CUDA device, by NVRTC where the build's images do not serve."""
    for image in (DLFP4_CUDA_IMAGE_codecs, DLFP4_CUDA_IMAGE_blocks, DLFP4_CUDA_IMAGE_dots):
        load_kernels(device, image)
