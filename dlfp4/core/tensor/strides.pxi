# Arithmetic on shapes and strides alone: no Python objects, no access to a tensor's memory. Strides count elements; a
# dimension of extent 1 may have any stride. All products of extents, strides and bits in the core are made by the
# functions at the top, which see where 63 bits do not hold them; tests/project/test_extents.py looks for others.

cdef extern from *:
    """
    #define mul_overflows(a, b, out) __builtin_mul_overflow((int64_t)(a), (int64_t)(b), (out))
    #define add_overflows(a, b, out) __builtin_add_overflow((int64_t)(a), (int64_t)(b), (out))
    """
    bint mul_overflows(int64_t, int64_t, int64_t *) noexcept nogil
    bint add_overflows(int64_t, int64_t, int64_t *) noexcept nogil


cdef inline int64_t times(int64_t a, int64_t b) noexcept nogil:
    """A product that was checked where its tensor came in. Of empty tensors, whose extents may have any product, it can
    be more than 63 bits hold, and then nobody reads it."""
    cdef int64_t product
    return INT64_MAX if mul_overflows(a, b, &product) else product


cdef inline int64_t count_bits(int64_t size, int bits) noexcept nogil:
    """The bits of so many elements, or -1 where 63 bits do not hold them rounded up to whole bytes."""
    cdef int64_t found, rounded
    if size < 0 or mul_overflows(size, bits, &found) or add_overflows(found, 7, &rounded):
        return -1
    return found


cdef inline int64_t count_elements(int ndim, const int64_t *shape) noexcept nogil:
    """The product of the extents, or -1 where it does not fit 63 bits. One empty dimension makes it 0."""
    cdef int64_t size = 1
    cdef bint overflow = False
    cdef int k
    for k in range(ndim):
        if shape[k] == 0:
            return 0
        overflow |= mul_overflows(size, shape[k], &size)
    return -1 if overflow else size


cdef inline bint fill_compact_strides(int ndim, const int64_t *shape, int64_t *strides) noexcept nogil:
    """Row-major strides; False where one does not fit 63 bits."""
    cdef int64_t stride = 1
    cdef int k
    for k in range(ndim - 1, -1, -1):
        strides[k] = stride
        if shape[k] > 1 and mul_overflows(stride, shape[k], &stride):
            return False
    return True


cdef str beyond_memory(int64_t size):
    """What is said of a shape whose elements or strides do not fit 63 bits; NumPy refuses empty ones of such, too."""
    return ("is empty, but its other extents count more elements than memory can hold" if size == 0
            else "has more elements than memory can hold")


cdef inline bint has_countable_extents(int ndim, const int64_t *shape) noexcept nogil:
    """Whether the product of the extents above zero fits 63 bits."""
    cdef int64_t size = 1
    cdef int k
    for k in range(ndim):
        if shape[k] > 0 and mul_overflows(size, shape[k], &size):
            return False
    return True


cdef inline bint is_compact(int ndim, const int64_t *shape, const int64_t *strides) noexcept nogil:
    """Whether elements lie in row-major order without gaps, as those of empty tensors do by definition."""
    cdef uint64_t expected = 1   # which may wrap before an empty dimension
    cdef bint compact = True
    cdef int k
    for k in range(ndim - 1, -1, -1):
        if shape[k] == 0:
            return True
        if shape[k] != 1:
            compact &= <uint64_t> strides[k] == expected
            expected *= <uint64_t> shape[k]
    return compact


cdef inline bint find_extent(int ndim, const int64_t *shape, const int64_t *strides,
                             int64_t *low, int64_t *high) noexcept nogil:
    """The lowest and the highest element offset of a tensor that is not empty; False on overflow."""
    cdef int64_t reach, down = 0, up = 0
    cdef bint overflow = False
    cdef int k
    for k in range(ndim):
        if shape[k] == 1:
            continue
        overflow |= mul_overflows(shape[k] - 1, strides[k], &reach)
        if reach < 0:
            overflow |= add_overflows(down, reach, &down)
        else:
            overflow |= add_overflows(up, reach, &up)
    low[0] = down
    high[0] = up
    return not overflow


cdef inline void fill_byte_range(const DLTensor *t, int64_t bits, int64_t *low, int64_t *high) noexcept nogil:
    """The addresses that a tensor's elements occupy: none of an empty tensor, all of one that no memory holds."""
    cdef int64_t first = <int64_t> t.data + <int64_t> t.byte_offset
    cdef int64_t size = count_elements(t.ndim, t.shape), lowest = 0, highest = size - 1
    cdef bint fits = size >= 0
    low[0] = high[0] = first
    if size == 0:
        return
    if t.strides != NULL:
        fits = find_extent(t.ndim, t.shape, t.strides, &lowest, &highest)
    if (not fits or mul_overflows(lowest, bits, &lowest) or mul_overflows(highest, bits, &highest)
            or add_overflows(highest, bits + 7, &highest)
            or add_overflows(first, lowest >> 3, low)   # rounded down, below zero as well
            or add_overflows(first, highest >> 3, high)):
        low[0] = INT64_MIN
        high[0] = INT64_MAX


cdef inline int find_unit_dim(int ndim, const int64_t *shape, const int64_t *strides,
                              int old_bits, int new_bits) noexcept nogil:
    """The dimension along which bytes can be counted in elements of another width, or -1.

    It is the last dimension of stride 1 whose extent divides. It is the last dimension of all where the tensor is
    empty, or where that dimension has extent 1, whose stride means nothing.
    """
    cdef bint is_free = ndim > 0 and shape[ndim - 1] == 1
    cdef int k
    if count_elements(ndim, shape) == 0:
        return ndim - 1
    for k in range(ndim - 1, -1, -1):
        if strides[k] == 1:
            is_free = False
            if shape[k] % new_bits * old_bits % new_bits == 0:
                return k
    return ndim - 1 if is_free else -1


cdef bint rescale_dims(int ndim, int64_t *shape, int64_t *strides, int dim, int old_bits, int new_bits) noexcept nogil:
    """The same bytes counted in elements of another width along `dim`; False where they do not divide."""
    cdef bint is_empty = count_elements(ndim, shape) == 0   # its strides say nothing
    cdef bint divides
    cdef int64_t scaled
    cdef int k
    for k in range(ndim):
        if k == dim:
            if mul_overflows(shape[k], old_bits, &scaled) or scaled % new_bits:
                return False
            shape[k] = scaled // new_bits
            strides[k] = 1
        else:
            divides = not mul_overflows(strides[k], old_bits, &scaled) and scaled % new_bits == 0
            if not divides and shape[k] > 1 and not is_empty:
                return False
            strides[k] = scaled // new_bits
    return True


cdef inline void settle_strides(int ndim, const int64_t *shape, int64_t *strides, int64_t size) noexcept nogil:
    """Give meaningless strides, those of extents of 1 and of empty tensors, their row-major values: consumers multiply
    by them all the same.

    One such stride carries a meaning: where the last extent is 1, a stride of 1 says that elements are packed along it.
    Where they are not, it gets a stride beyond all elements.
    """
    cdef int64_t stride = 1
    cdef int k
    if size == 0:
        if not fill_compact_strides(ndim, shape, strides):
            for k in range(ndim):
                strides[k] = 1
        return
    for k in range(ndim - 1, -1, -1):
        if shape[k] == 1 and strides[k] != stride:
            strides[k] = size + 2 if stride == 1 else stride
        if mul_overflows(shape[k], strides[k] if strides[k] >= 0 else -strides[k], &stride):
            stride = 1


cdef bint fill_reshaped_strides(int old_ndim, const int64_t *old_shape, const int64_t *old_strides,
                                int new_ndim, const int64_t *new_shape, int64_t *new_strides) noexcept nogil:
    """Strides that show the same elements, in row-major order, under a new shape of the same size > 0; False where only
    a copy can. Dimensions are matched from the last in groups of equal size, each of which must have even steps."""
    cdef int old = old_ndim - 1, new = new_ndim - 1, first
    cdef int64_t old_size, new_size, stride
    while new >= 0:
        while old >= 0 and old_shape[old] == 1:
            old -= 1
        old_size = old_shape[old] if old >= 0 else 1
        stride = old_strides[old] if old >= 0 else 1
        new_size = new_shape[new]
        first = new
        while old_size != new_size:
            if old_size > new_size:
                first -= 1
                new_size = times(new_size, new_shape[first])
                continue
            if old_shape[old - 1] != 1 and old_strides[old - 1] != times(old_size, stride):
                return False
            old -= 1
            old_size = times(old_size, old_shape[old])
            # A dimension of extent 1 in between has a free stride; the group goes on as if it were not there.
        while new >= first:
            new_strides[new] = stride
            stride = times(stride, new_shape[new])
            new -= 1
        old -= 1
    return True
