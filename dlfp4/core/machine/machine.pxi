# The machine: which kernels run, on how many threads, and whether there is a GPU.

cdef int MOST_THREADS = 4096  # OpenMP ends the process where the system gives it fewer than it was told to use


cdef int check_isa() except -1:
    """ImportError where DLFP4_ISA names an instruction set that is not available: no kernel may run then."""
    cdef int number = 0
    if dlfp4_isa() == NULL:
        levels = []
        while dlfp4_isa_numbered(number) != NULL:
            if dlfp4_set_isa(dlfp4_isa_numbered(number)) == DLFP4_OK:
                levels.append(dlfp4_isa_numbered(number).decode())
            number += 1
        raise ImportError(f"DLFP4_ISA={os.environ.get('DLFP4_ISA')!r}: this machine and this build of dlfp4 have "
                          f"{', '.join(levels)}; set one of these, or unset it for the fastest")
    return 0


check_isa()


def cpu_isa():
    """The instruction set of the host kernels in use: "scalar", "avx2", "avx512", "avx512_bf16", "amx" or "neon"."""
    return dlfp4_isa().decode()


def cuda_available():
    """Whether a CUDA driver and a device are there. Opens the driver."""
    cdef int count = 0
    return dlfp4_cuda_device_count(&count) == 0 and count > 0


def _register_tvm_ffi():
    """Put the library's functions into tvm-ffi's registry, which has to be imported."""
    status = dlfp4_register_tvm_ffi()
    if status != DLFP4_OK:
        raise RuntimeError(f"registering functions with tvm-ffi: {dlfp4_status_string(status).decode()}")


def cuda_image():
    """What the CUDA kernels of this build were compiled for, as ``"80 86 89 90a 100f 120f, PTX"``; or ``""``."""
    return dlfp4_cuda_image().decode()


def set_num_threads(threads, /):
    """Set how many threads large calls on the host use, in the whole process. Results do not depend on it.

    Parameters
    ----------
    threads : int
        How many; 0 restores the default, which is OpenMP's: the CPUs that the process may use, or OMP_NUM_THREADS.

    Raises
    ------
    ValueError
        `threads` is negative, or above 4096.
    TypeError
        `threads` is not an integer.

    Notes
    -----
    OpenMP ends the process where the system refuses it a thread, for lack of memory or by a limit on processes. Choose
    a number that the system allows.
    """
    count = parse_integer(threads, "threads")
    if not 0 <= count <= MOST_THREADS:
        raise ValueError(f"threads={count}: expected 0 to {MOST_THREADS}")
    dlfp4_set_num_threads(count)


def get_num_threads():
    """Threads that large calls on the host use."""
    return dlfp4_get_num_threads()
