# Pickling of host memory. With protocol 5 it goes out of band, so that it is shared instead of copied.

cdef tuple reduce_tensor(Tensor self, int protocol):
    """The function that rebuilds the tensor, and its arguments: the bytes and their description."""
    cdef Tensor source = self
    if not host_readable(self.dl.device.device_type):
        raise BufferError(f"a Tensor on {device_of(self)} cannot be pickled: its memory belongs to a device of this "
                          f"process; call .to_device('cpu') first")
    secure(self)
    if self.immutable or not is_compact_tensor(self):   # the unpickled tensor may be written to
        source = duplicate(self)
    return _restore_tensor, (
        pickled_bytes(bytes_of(source), protocol), shape_of(self), dtype_name(self), is_padded(self), self.x2_ != 0)


cdef object bytes_of(Tensor self):
    """The memory of a compact tensor as an array of bytes, which keeps it alive."""
    cdef cnp.npy_intp stride = 1
    cdef int64_t count = count_bytes(self)
    array = new_array(np.dtype(np.uint8), 1, &count, &stride, self.dl.data, array_flags(self))
    cnp.set_array_base(array, self)
    return array


cdef object pickled_bytes(array, int protocol):
    """Bytes for the pickler: a bytearray for writable memory, so that it comes back writable."""
    if protocol >= 5:
        return pickle.PickleBuffer(array)
    return bytearray(array) if array.flags.writeable else bytes(array)


def _restore_tensor(buffer, shape, dtype, padded, x2):
    """Called by pickles: a Tensor over the memory of a buffer, read-only where that is."""
    cdef Tensor memory = import_array(np.frombuffer(buffer, np.uint8)), self = Tensor.__new__(Tensor)
    cdef int k
    self.x2_ = bool(x2)
    reserve_dims(self, len(shape))
    copy_description(self, memory)
    share_owner(self, memory)
    set_dtype(self, row_of_argument(dtype), padded)
    for k in range(self.dl.ndim):
        if not 0 <= shape[k] <= INT64_MAX:
            raise ValueError(f"shape {shape} has an invalid extent: the pickle is damaged")
        self.dl.shape[k] = shape[k]
    self.size_ = count_elements(self.dl.ndim, self.dl.shape)
    if not fill_compact_strides(self.dl.ndim, self.dl.shape, self.dl.strides) or count_bytes(self) != memory.size_:
        raise ValueError(f"the buffer has {memory.size_} bytes; a Tensor of shape {shape} of {dtype} needs "
                         f"{count_bytes(self)}: pass the buffers unchanged and in their original order")
    fill_pairs(self)
    return self


def _restore_scaled(data, scales, global_scale, format, axis, scale_layout, shape, encode_scale=None,
                    hadamard=None, offsets=None):
    """Called by pickles, and by TensorProto: a ScaledTensor of its parts, a global scale of one row as it is."""
    cdef bint are_biases = offsets is not None and is_float(row_of_argument(offsets.dtype))
    cdef ScaledTensor self = assemble(data, scales, global_scale, _find_format(format), axis, scale_layout, shape,
                                      offsets, are_biases)
    if global_scale is not None and global_scale.ndim > self.global_scale.dl.ndim:
        self = make_scaled(self.data, self.scales, reshape_tensor(self.global_scale, (1,)), self.format, axis,
                           scale_layout, self.shape, 0, None)
    self.encode_scale = encode_scale
    return with_rotation(self, parse_hadamard(hadamard))
