# Natives: a framework's C functions, which answer what a DLTensor does not say of its tensor. A call takes nanoseconds;
# asking through Python would cost more than the exchange.

cdef struct Natives:
    # A handle is the address of a pointer to what implements the tensor; 0 says that the function answered.
    Py_ssize_t impl                                        # bytes into the Python object, where that pointer lies
    int (*data)(void **, void **) noexcept
    int (*storage_offset)(void **, int64_t *) noexcept     # in elements
    int (*storage_bytes)(void **, int64_t *) noexcept
    int (*dtype)(void **, int32_t *) noexcept
    size_t (*itemsize)(int32_t) noexcept                   # of a dtype
    int32_t bytes[2]                                       # the two dtypes that are integers of 8 bits
    void **(*trace)() noexcept                             # where this thread keeps its trace, if it has one
    uint8_t (*has_modes)(uint8_t) noexcept                 # whether something stands between calls and tensors


cdef int fill_natives(Natives *self, natives) except -1:
    """From the addresses that the framework's file found: see frameworks.base.Natives."""
    self.impl = natives.impl
    self.data = <int (*)(void **, void **) noexcept> <uintptr_t> natives.data
    self.storage_offset = <int (*)(void **, int64_t *) noexcept> <uintptr_t> natives.storage_offset
    self.storage_bytes = <int (*)(void **, int64_t *) noexcept> <uintptr_t> natives.storage_bytes
    self.dtype = <int (*)(void **, int32_t *) noexcept> <uintptr_t> natives.dtype
    self.itemsize = <size_t (*)(int32_t) noexcept> <uintptr_t> natives.itemsize
    self.bytes[0], self.bytes[1] = natives.bytes
    self.trace = <void **(*)() noexcept> <uintptr_t> natives.trace
    self.has_modes = <uint8_t (*)(uint8_t) noexcept> <uintptr_t> natives.has_modes
    return 0


cdef inline void **handle_in(const Natives *natives, object x) noexcept:
    return <void **> (<char *> <void *> x + natives.impl)


cdef inline bint is_in_storage(const Natives *natives, void **x, const void *data, int64_t itemsize,
                               int64_t low, int64_t high) noexcept:
    """Whether an address range lies in the storage behind a tensor. A storage may have been freed, or shrunk below its
    views, whose addresses then belong to nobody or to other objects. `x` is the
    handle of the tensor, `data` and `itemsize` are its own."""
    cdef int64_t offset = 0, bytes = 0, first
    if low == high:
        return True
    if natives.storage_offset(x, &offset) or natives.storage_bytes(x, &bytes):
        return False
    first = <int64_t> data - times(offset, itemsize)
    return first >= FIRST_PAGE and low >= first and high <= first + bytes


cdef inline bint still_stores(const Natives *natives, object x, int64_t low, int64_t high) noexcept:
    """Whether a tensor still has the memory that it once lent; it may have other memory, of another type, by now."""
    cdef void *data = NULL
    cdef int32_t dtype = 0
    if natives.data(handle_in(natives, x), &data) or natives.dtype(handle_in(natives, x), &dtype):
        return False
    return is_in_storage(natives, handle_in(natives, x), data, natives.itemsize(dtype), low, high)


cdef inline bint is_seen_through(const Natives *natives, object x, const DLTensor *seen) noexcept:
    """Whether this thread sees the tensor's own values, through no trace and no mode, and the tensor's type is the one
    that its description names: integers below 8 bits may describe themselves as int8."""
    cdef int32_t dtype = -1
    if natives.trace()[0] != NULL or natives.has_modes(False):
        return False
    if seen.dtype.bits != 8 or seen.dtype.code > 1:   # neither int nor uint
        return True
    natives.dtype(handle_in(natives, x), &dtype)
    return dtype == natives.bytes[0] or dtype == natives.bytes[1]
