# Outlines: tensors without memory, for what is asked before there is any. Operations check them as all others, run no
# kernel, and return outlines; nobody outside of dlfp4 gets one.

cdef enum:
    NOWHERE = 4096   # the address of memory that does not exist: aligned, and never read
    OUTLINE = 1 << 7   # among the flags of a Tensor, beside those of DLPack

# Kernels that are asked what they take read the scale of a whole tensor: here a number may be read, 1 as float32.
cdef int64_t[2] NUMBER = [0x3F8000003F800000, 0x3F8000003F800000]


cdef inline void *address_of_outline(int64_t size) noexcept:
    return <void *> NUMBER if size == 1 else <void *> <uintptr_t> NOWHERE


cdef inline bint is_outline(Tensor self) noexcept nogil:
    return self.flags & OUTLINE != 0


cdef int refuse_outline(Tensor self) except -1:
    raise BufferError(f"a {dtype_name(self)} tensor of shape {shape_of(self)} is only described: it has no memory; "
                      f"inside a compiled function use the operations of dlfp4.torch or dlfp4.jax")


def _is_outline(x):
    """The same for dlfp4's Python files, of quantized tensors as well."""
    return is_outline(elements_of(x))


def _has_memory(Tensor self):
    """Whether a result has elements to be written."""
    return self.size_ != 0 and not is_outline(self)


cdef Tensor outline(int row, int ndim, const int64_t *shape, bint padded, DLDevice device):
    """A compact tensor without memory."""
    cdef Tensor self = describe_compact(row, ndim, shape, padded, device)
    self.dl.data = address_of_outline(self.size_)
    self.flags |= OUTLINE
    return self


def _outline_as(tuple shape, tuple strides, dtype, bint in_pairs, device):
    """That of a tensor as its library describes it, which may count FP4 in pairs."""
    cdef Tensor self = Tensor.__new__(Tensor)
    cdef Device where = parse_device(device)
    cdef int64_t dims[MOST_DIMS]
    cdef int64_t steps[MOST_DIMS]
    cdef int row = row_of_argument(dtype), k
    cdef DLTensor described
    memset(&described, 0, sizeof(described))
    described.device.device_type, described.device.device_id = where.code, where.index
    described.ndim = fill_extents(dims, list(shape))
    described.data = address_of_outline(count_elements(described.ndim, dims))
    for k in range(described.ndim):
        steps[k] = strides[k]
    described.shape, described.strides = dims, steps
    described.dtype.code, described.dtype.bits = dlfp4_dtypes[row].code, dlfp4_dtypes[row].bits
    described.dtype.lanes = 2 if in_pairs else 1
    describe(self, &described, 0)
    self.flags |= OUTLINE
    return self


# ---- Of TensorProtos

cdef Tensor outline_buffer(tuple shape, dtype, bint padded, Device device):
    cdef int64_t dims[MOST_DIMS]
    cdef int ndim = fill_extents(dims, list(shape))
    cdef DLDevice where
    where.device_type, where.device_id = device.code, device.index
    return outline(row_of_argument(dtype), ndim, dims, padded, where)


cdef ScaledTensor outline_scaled(proto, int axis):
    """A quantized tensor, along one of the axes that a TensorProto has."""
    parts = {buffer.name: outline_buffer(buffer.shape, buffer.dtype, False, proto.device)
             for buffer in proto._buffers_along(axis)}
    return make_scaled(parts["data"], parts["scales"], parts.get("global_scale"), proto.format, axis,
                       proto.scale_layout, proto.shape, parse_hadamard(proto.hadamard),
                       parts.get("zero_points", parts.get("biases")))


cdef object outline_of(proto):
    """The tensor that a TensorProto describes, quantized along one axis or not at all."""
    if proto.format is None:
        return outline_buffer(proto.shape, proto.dtype, not proto.packed, proto.device)
    return outline_scaled(proto, -1 if proto.rowwise else -2)


def _outline(proto, turned):
    """The same, or its transpose, for files that ask whether operands can be multiplied."""
    tensor = outline_of(proto)
    return tensor.mT if turned else tensor
