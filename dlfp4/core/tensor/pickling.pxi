# Pickling: host memory, out of band where the pickler takes buffers (protocol 5), so that it is shared, not copied.

cdef tuple reduce_tensor(Tensor self, int protocol):
    """What rebuilds the tensor: its bytes, and what they are."""
    cdef Tensor source = self
    if not host_readable(self.dl.device.device_type):
        raise BufferError(f"a Tensor on {device_of(self)} cannot be pickled: its memory belongs to a device of this "
                          f"process; call .to_device('cpu') first")
    secure(self)
    if self.immutable or not is_compact_tensor(self):   # what comes back may be written to
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
    """Bytes for the pickler. What could be written can be written again: bytearray, not bytes."""
    if protocol >= 5:
        return pickle.PickleBuffer(array)
    return bytearray(array) if array.flags.writeable else bytes(array)


def _restore_tensor(buffer, shape, dtype, padded, x2):
    """A Tensor over the memory of any buffer, read-only where that is: what a pickle calls."""
    cdef Tensor memory = import_array(np.frombuffer(buffer, np.uint8)), self = Tensor.__new__(Tensor)
    cdef int k
    self.x2_ = bool(x2)
    reserve_dims(self, len(shape))
    copy_description(self, memory)
    share_owner(self, memory)
    set_dtype(self, row_of_argument(dtype), padded)
    for k in range(self.dl.ndim):
        if not 0 <= shape[k] <= INT64_MAX:
            raise ValueError(f"shape {shape} has an extent that no Tensor has: the pickle is damaged")
        self.dl.shape[k] = shape[k]
    self.size_ = count_elements(self.dl.ndim, self.dl.shape)
    if not fill_compact_strides(self.dl.ndim, self.dl.shape, self.dl.strides) or count_bytes(self) != memory.size_:
        raise ValueError(f"the buffer has {memory.size_} bytes; a Tensor of shape {shape} of {dtype} needs "
                         f"{count_bytes(self)}: give each buffer in the order, and of the size, that it was pickled")
    fill_pairs(self)
    return self


def _restore_scaled(data, scales, global_scale, format, axis, scale_layout, shape):
    """A ScaledTensor of its parts: what a pickle calls."""
    return assemble(data, scales, global_scale, _find_format(format), axis, scale_layout, shape)
