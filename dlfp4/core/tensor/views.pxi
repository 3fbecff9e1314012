# Views: other descriptions of the same memory. No view copies; one that strides cannot describe is refused.

cdef Tensor make_view(Tensor source, int ndim):
    """A Tensor over `source`'s memory. The caller fills its `ndim` dimensions, then calls finish_view."""
    cdef Tensor self = Tensor.__new__(Tensor)
    self.x2_ = source.x2_
    reserve_dims(self, ndim)
    copy_description(self, source)
    share_owner(self, source)
    return self


cdef Tensor finish_view(Tensor self):
    self.size_ = count_elements(self.dl.ndim, self.dl.shape)
    settle_strides(self.dl.ndim, self.dl.shape, self.dl.strides, self.size_)
    fill_pairs(self)
    return self


cdef int advance(Tensor self, int64_t elements) except -1:
    """Move the first element, which must start on a byte."""
    cdef int64_t bits = times(elements, storage_bits(self))
    if bits & 7:
        raise BufferError(
            f"this view of packed {dtype_name(self)} starts {bits & 7} bits into a byte (element {elements} from the "
            f"first), where DLPack has no address; slice a copy with one element a byte: dlfp4.unpack(t)[...]")
    if is_address(self.dl.device.device_type):
        self.dl.data = <char *> self.dl.data + bits // 8
    elif <int64_t> self.dl.byte_offset + bits // 8 < 0:
        raise BufferError(f"this view would start before the buffer on {device_of(self)}")
    else:
        self.dl.byte_offset += bits // 8
    return 0


cdef int copy_dims(Tensor view, int new, Tensor self, int dim, int count) except -1:
    """Copy `count` dimensions unchanged."""
    for dim in range(dim, dim + count):
        view.dl.shape[new] = self.dl.shape[dim]
        view.dl.strides[new] = self.dl.strides[dim]
        new += 1
    return 0


cdef int count_entries(Tensor self, tuple key, int *ndim) except -1:
    """Count the dimensions that an index leaves; returns how many of the tensor's it names."""
    cdef int used = 0, ellipses = 0
    ndim[0] = self.dl.ndim
    for entry in key:
        if entry is Ellipsis:
            ellipses += 1
        elif entry is None:
            ndim[0] += 1
        else:
            used += 1
            ndim[0] -= type(entry) is not slice
    if ellipses > 1:
        raise IndexError("an index can have one ellipsis ('...') at most")
    if used > self.dl.ndim:
        raise IndexError(f"{used} indices for a tensor of {self.dl.ndim} dimensions, shape {shape_of(self)}")
    return used


cdef Tensor slice_tensor(Tensor self, key):
    cdef tuple entries = <tuple> key if type(key) is tuple else (key,)
    cdef int ndim, dim = 0, new = 0, rest = self.dl.ndim - count_entries(self, entries, &ndim)
    cdef int64_t offset = 0, index
    cdef Py_ssize_t start, stop, step
    cdef Tensor view = make_view(self, ndim)
    for entry in entries:
        if entry is None:
            view.dl.shape[new] = view.dl.strides[new] = 1
            new += 1
        elif entry is Ellipsis:
            copy_dims(view, new, self, dim, rest)
            new += rest
            dim += rest
            rest = 0
        elif type(entry) is slice:
            PySlice_Unpack(entry, &start, &stop, &step)
            view.dl.shape[new] = PySlice_AdjustIndices(self.dl.shape[dim], &start, &stop, step)
            view.dl.strides[new] = times(self.dl.strides[dim], step if view.dl.shape[new] > 1 else 1)
            offset += times(self.dl.strides[dim], start) if self.size_ else 0
            new += 1
            dim += 1
        else:
            index = as_index(entry, self.dl.shape[dim], dim)
            offset += times(self.dl.strides[dim], index) if self.size_ else 0
            dim += 1
    copy_dims(view, new, self, dim, rest)
    finish_view(view)
    view.is_part |= view.size_ != self.size_
    if view.size_ != 0:
        advance(view, offset)
    return view


cdef object no_index(entry):
    return TypeError(f"index {entry!r} is of type {type(entry).__name__}; a Tensor takes integers, slices, '...' and "
                     "None (views without a copy); for more, index .to_numpy()")


cdef int64_t as_index(entry, int64_t extent, int dim) except -1:
    cdef int64_t index
    if isinstance(entry, bool) or not PyIndex_Check(entry):
        raise no_index(entry)
    try:
        index = PyNumber_AsSsize_t(entry, IndexError)
    except TypeError:   # arrays have __index__, and refuse unless they are one integer
        raise no_index(entry) from None
    if not -extent <= index < extent:
        raise IndexError(f"index {index} is out of bounds for dimension {dim} of extent {extent}")
    return index + extent if index < 0 else index


cdef Tensor reshape_tensor(Tensor self, shape):
    cdef list wanted = parse_shape(shape)
    cdef Tensor view
    cdef int k
    resolve_unknown(self, wanted)
    view = make_view(self, len(wanted))
    for k in range(len(wanted)):
        view.dl.shape[k] = wanted[k]
    if not fill_view_strides(view, self):
        if self.size_ == 0:
            raise ValueError(f"shape {tuple(wanted)} has more elements along its other dimensions than can be counted")
        raise BufferError(f"reshaping {shape_of(self)} with strides {strides_of(self)} to {tuple(wanted)} needs a "
                          f"copy; call .copy().reshape(...)")
    return finish_view(view)


cdef bint fill_view_strides(Tensor view, Tensor self) noexcept:
    """Strides that show the same elements in a view of another shape and the same size; False where only a copy can."""
    if self.size_ == 0:   # any strides will do
        return fill_compact_strides(view.dl.ndim, view.dl.shape, view.dl.strides)
    return fill_reshaped_strides(self.dl.ndim, self.dl.shape, self.dl.strides,
                                 view.dl.ndim, view.dl.shape, view.dl.strides)


cdef int resolve_unknown(Tensor self, list wanted) except -1:
    """Replace the one -1 that a shape may have by the extent that fits; ValueError where none does."""
    given = tuple(wanted)
    if min(wanted, default=0) < -1 or wanted.count(-1) > 1:
        raise ValueError(f"shape {given} is not valid: extents are 0 or more, and one of them may be -1")
    known = bounded_product([extent for extent in wanted if extent != -1])
    if -1 in wanted and known > 0:
        wanted[wanted.index(-1)] = self.size_ // known
    if bounded_product(wanted) != self.size_ or -1 in wanted or max(wanted, default=0) > INT64_MAX:
        raise ValueError(f"cannot reshape {shape_of(self)} ({self.size_} elements) to {given}")
    return 0


cdef Tensor reverse_dims(Tensor self):
    cdef Tensor view = make_view(self, self.dl.ndim)
    cdef int last = self.dl.ndim - 1, k
    for k in range(last + 1):
        copy_dims(view, k, self, last - k, 1)
    return finish_view(view)


cdef Tensor exchange_dims(Tensor self, int one, int other):
    cdef Tensor view = make_view(self, self.dl.ndim)
    copy_dims(view, 0, self, 0, self.dl.ndim)
    copy_dims(view, one, self, other, 1)
    copy_dims(view, other, self, one, 1)
    return finish_view(view)


cdef Tensor reinterpret(Tensor self, int row):
    """The same bytes as elements of another type; the dimension along which they are packed changes its extent."""
    cdef Tensor view = make_view(self, self.dl.ndim)
    cdef int old_bits = storage_bits(self), new_bits, dim
    memcpy(view.dl.shape, self.dl.shape, 2 * self.dl.ndim * sizeof(int64_t))
    # Only a type of the same width keeps one element a byte; anything else reads the bytes as packed.
    set_dtype(view, row, is_padded(self) and dlfp4_dtypes[row].bits == self.dl.dtype.bits)
    new_bits = storage_bits(view)
    if new_bits != old_bits:
        dim = find_unit_dim(view.dl.ndim, view.dl.shape, view.dl.strides, old_bits, new_bits)
        if dim < 0 or not rescale_dims(view.dl.ndim, view.dl.shape, view.dl.strides, dim, old_bits, new_bits):
            raise ValueError(
                f"cannot view {dtype_name(self)} ({old_bits} bits) of shape {shape_of(self)} and strides "
                f"{strides_of(self)} as {dtype_name(view)} ({new_bits} bits): the bytes along the dimension of stride "
                f"1 must divide evenly; slice to a multiple, call .copy() if there is none, .reshape((1,)) if 0-d")
    return finish_view(view)


def _as_padded(x, dtype):
    """Bytes as elements below 8 bits that lie one a byte: the inverse of reading such a tensor as its bytes."""
    cdef Tensor source = borrow(x), view
    cdef int row = row_of_argument(dtype)
    if source.row != UINT8 or not is_subbyte(row):
        raise TypeError(f"{dtype_name(source)} as padded {dlfp4_dtypes[row].name.decode()}: expected uint8, and a type "
                        f"below 8 bits")
    view = make_view(source, source.dl.ndim)
    copy_dims(view, 0, source, 0, source.dl.ndim)
    set_dtype(view, row, True)
    return finish_view(view)
