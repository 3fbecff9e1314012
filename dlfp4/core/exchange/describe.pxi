# Description: the fields of a Tensor, and how a foreign DLTensor fills them. Every field is checked before it is used:
# device, rank and type first, so that no array is read past its end; then extents, reach and addresses.

cdef enum:
    MOST_DIMS = 64   # of results and of operands of products: NumPy's limit
    MAX_NDIM = 65535
    FIRST_PAGE = 4096   # bytes; no memory lies below: such an address is NULL plus an offset


cdef inline bint is_packed(Tensor self) noexcept nogil:
    """Whether several elements share a byte."""
    return storage_bits(self) < 8


cdef inline int64_t count_bytes(Tensor self) noexcept nogil:
    """ceil(size * bits / 8) over the whole tensor. DLPack's GetDataSize rounds per element, which is wrong for FP4."""
    return (times(self.size_, storage_bits(self)) + 7) // 8


cdef str dtype_name(Tensor self):
    return dlfp4_dtypes[self.row].name.decode()


cdef tuple dims_to_tuple(const int64_t *dims, int ndim):
    cdef tuple result = PyTuple_New(ndim)   # through a list it would take twice as long
    cdef object extent
    cdef int k
    for k in range(ndim):
        extent = dims[k]
        Py_INCREF(extent)   # PyTuple_SET_ITEM takes this reference
        PyTuple_SET_ITEM(result, k, extent)
    return result


cdef tuple shape_of(Tensor self):
    return dims_to_tuple(self.dl.shape, self.dl.ndim)


cdef bint has_shape(Tensor self, tuple shape) except -1:
    """The same as shape_of(self) == shape, without the tuple."""
    cdef int k
    if len(shape) != self.dl.ndim:
        return False
    for k in range(self.dl.ndim):
        if self.dl.shape[k] != <int64_t> shape[k]:
            return False
    return True


cdef tuple strides_of(Tensor self):
    return dims_to_tuple(self.dl.strides, self.dl.ndim)


cdef Device device_of(Tensor self):
    return device_from_dlpack(self.dl.device)


cdef inline bint lies_on(Tensor self, Device device) noexcept:
    return self.dl.device.device_type == device.code and self.dl.device.device_id == device.index


cdef inline bint is_compact_tensor(Tensor self) noexcept nogil:
    return is_compact(self.dl.ndim, self.dl.shape, self.dl.strides)


cdef int refuse(const DLTensor *src, str problem) except -1:
    """Raise BufferError for a tensor as it was described; shape and strides are not read."""
    raise BufferError(f"{problem} (ndim={src.ndim}, dtype code={src.dtype.code} bits={src.dtype.bits} "
                      f"lanes={src.dtype.lanes}, device=({src.device.device_type}, {src.device.device_id}), "
                      f"byte_offset={src.byte_offset}); the producer's description is not a valid DLPack 1.x tensor")


cdef inline int reserve_dims(Tensor self, int ndim) except -1:
    """Room for shape and strides, twice where the tensor is exported as x2: singles and pairs."""
    cdef int64_t needed = <int64_t> 2 * ndim * (1 + self.x2_)
    cdef int64_t *dims = self.inline_dims
    if needed > INLINE_DIMS:
        if ndim > MAX_NDIM:
            raise ValueError(f"{ndim} dimensions: a tensor has {MAX_NDIM} at most")
        dims = <int64_t *> PyMem_RawMalloc(needed * sizeof(int64_t))
        if dims == NULL:
            raise MemoryError(f"no memory for {ndim} dimensions")
    self.dl.ndim = ndim
    self.dl.shape = dims
    self.dl.strides = dims + ndim
    return 0


cdef int set_dtype(Tensor self, int row, bint padded) except -1:
    self.row = row
    self.dl.dtype.code = dlfp4_dtypes[row].code
    self.dl.dtype.bits = dlfp4_dtypes[row].bits
    self.dl.dtype.lanes = 1
    if padded and is_subbyte(row):
        self.flags |= DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED
    else:
        self.flags &= ~DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED
    return 0


cdef inline bint is_padded(Tensor self) noexcept nogil:
    return self.flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED != 0


cdef inline int storage_bits(Tensor self) noexcept nogil:
    """Bits from one element to the next in memory."""
    return 8 if is_padded(self) else self.dl.dtype.bits


cdef inline bint is_address(int32_t device_type) noexcept nogil:
    """Whether `data` is an address, to which offsets may be added; on other devices it may be an opaque handle."""
    return (host_readable(device_type) or is_cuda(device_type)
            or device_type == kDLROCM or device_type == kDLOneAPI)


cdef inline void fill_pairs(Tensor self) noexcept nogil:
    """Shape and strides in pairs, where the x2 dialect applies, the strides divide, and an import restores them."""
    cdef int ndim = self.dl.ndim
    cdef int64_t *pairs
    cdef int dim
    self.pairs = NULL
    if self.x2_ and self.dl.dtype.bits == 4 and not is_padded(self):
        pairs = self.dl.strides + ndim
        dim = find_unit_dim(ndim, self.dl.shape, self.dl.strides, 4, 8)
        memcpy(pairs, self.dl.shape, 2 * ndim * sizeof(int64_t))
        if (dim >= 0 and rescale_dims(ndim, pairs, pairs + ndim, dim, 4, 8)
                and find_unit_dim(ndim, pairs, pairs + ndim, 8, 4) == dim):
            self.pairs = pairs
            if self.size_ == 0:
                settle_strides(ndim, pairs, pairs + ndim, 0)


cdef int expand_pairs(Tensor self, const DLTensor *src) except -1:
    """Turn pairs (lanes = 2) into logical elements; fill_pairs is the inverse."""
    cdef int dim = find_unit_dim(self.dl.ndim, self.dl.shape, self.dl.strides, 8, 4)
    if self.dl.ndim == 0:
        raise BufferError(f"a {dtype_name(self)} tensor in pairs (lanes=2) of rank 0 has no dimension along which to "
                          f"count its two elements; reshape it to (1,) first")
    if dim < 0:
        raise BufferError(
            f"a {dtype_name(self)} tensor in pairs (lanes=2) of shape {shape_of(self)} and strides {strides_of(self)} "
            f"has no dimension of stride 1 along which to count single elements; make it contiguous first")
    if not rescale_dims(self.dl.ndim, self.dl.shape, self.dl.strides, dim, 8, 4):
        refuse(src, "shape or strides overflow when pairs are counted as single elements")
    return 0


def _single_shape(shape, strides):
    """The shape in single elements of a tensor of pairs, which may have no memory."""
    cdef Tensor self = Tensor.__new__(Tensor)
    cdef DLTensor unknown
    cdef int k, ndim = len(shape)
    reserve_dims(self, ndim)
    for k in range(ndim):
        self.dl.shape[k] = shape[k]
        self.dl.strides[k] = strides[k]
    set_dtype(self, row_of_argument("float4_e2m1fn"), False)
    memset(&unknown, 0, sizeof(unknown))
    expand_pairs(self, &unknown)
    return shape_of(self)


cdef int check_memory(Tensor self, const DLTensor *src) except -1:
    """Check size, addresses and the data pointer: every byte from the first to the last element must be addressable."""
    cdef int64_t low, high, first
    cdef int bits = storage_bits(self)
    self.size_ = count_elements(self.dl.ndim, self.dl.shape)
    if count_bits(self.size_, bits) < 0:
        refuse(src, f"shape {shape_of(self)} has more elements than memory can hold")
    if self.size_ == 0:
        return 0
    if src.data == NULL or (is_address(self.dl.device.device_type) and <uintptr_t> src.data < FIRST_PAGE):
        where = "NULL" if src.data == NULL else f"address {<uintptr_t> src.data:#x}, an offset from NULL,"
        refuse(src, f"data is {where} for shape {shape_of(self)}: the tensor has no memory, as fake tensors and "
                    f"wrapper subclasses have none; pass the tensors that hold the data")
    low = 0
    high = self.size_ - 1
    if (not is_compact_tensor(self) and not find_extent(self.dl.ndim, self.dl.shape, self.dl.strides, &low, &high)
            or mul_overflows(low, bits, &low) or mul_overflows(high, bits, &high)):
        refuse(src, f"strides {strides_of(self)} reach beyond the address space for shape {shape_of(self)}")
    first = <int64_t> self.dl.byte_offset
    if is_address(self.dl.device.device_type):
        first = <int64_t> self.dl.data
    # A shift, which rounds down: half a byte before the first is a byte before it.
    if first < 0 or first + (low >> 3) < 0 or add_overflows(first, high // 8 + bits, &high):
        refuse(src, f"byte_offset and strides {strides_of(self)} reach outside the address space")
    return 0


cdef int describe(Tensor self, const DLTensor *src, uint64_t flags) except -1:
    """Fill `self` from a foreign description. On an exception `self` owns nothing of the producer's."""
    cdef int row, k, ndim = src.ndim
    cdef bint in_pairs = src.dtype.lanes == 2
    if ndim < 0 or ndim > MAX_NDIM:
        refuse(src, f"ndim must be between 0 and {MAX_NDIM}")
    if ndim > 0 and src.shape == NULL:
        refuse(src, "shape is NULL")
    if src.device.device_id < 0 or not is_device_type(src.device.device_type):
        refuse(src, "the device is none of DLPack's")
    row = row_of_dlpack(src.dtype)
    self.flags = flags & (DLPACK_FLAG_BITMASK_READ_ONLY | DLPACK_FLAG_BITMASK_IS_COPIED)
    set_dtype(self, row, flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED != 0)
    if in_pairs:
        if is_padded(self):
            refuse(src, "the elements are flagged as padded (one a byte) and counted in pairs (two a byte)")
    self.dl.device = src.device
    reserve_dims(self, ndim)
    for k in range(ndim):
        if src.shape[k] < 0:
            refuse(src, f"shape[{k}]={src.shape[k]} is negative")
        self.dl.shape[k] = src.shape[k]
    if src.strides != NULL:
        for k in range(ndim):   # a call of memcpy costs more than the few numbers
            self.dl.strides[k] = src.strides[k]
    elif not fill_compact_strides(ndim, self.dl.shape, self.dl.strides):
        refuse(src, f"shape {shape_of(self)} {beyond_memory(count_elements(ndim, self.dl.shape))}")
    if in_pairs:
        expand_pairs(self, src)
    self.dl.data = src.data
    self.dl.byte_offset = src.byte_offset
    if is_address(src.device.device_type) and src.byte_offset != 0:
        if (<int64_t> src.data < 0 or src.byte_offset > <uint64_t> INT64_MAX
                or add_overflows(<int64_t> src.data, src.byte_offset, &self.size_)):
            refuse(src, "byte_offset reaches outside the address space")
        self.dl.data = <char *> src.data + src.byte_offset
        self.dl.byte_offset = 0
    check_memory(self, src)
    settle_strides(ndim, self.dl.shape, self.dl.strides, self.size_)
    return 0
