# Pickling of host memory. With protocol 5 it goes out of band, so that it is shared instead of copied.

cdef tuple reduce_tensor(Tensor self, int protocol):
    """The function that rebuilds the tensor, and its arguments: the bytes and their description."""
    cdef Tensor source = self
    if not host_readable(self.dl.device.device_type):
        raise BufferError(f"a Tensor on {device_of(self)} cannot be pickled: its memory belongs to a device of this "
                          f"process; call .to_device('cpu') first")
    secure(self)
    # The unpickled tensor may be written to, and no longer knows that others have elements in its last byte.
    if self.immutable or not is_compact_tensor(self) or (self.is_part and times(self.size_, storage_bits(self)) % 8):
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


# What pickles call. A pickle may be damaged or hostile: these functions check what an import checks, so that they can
# be allowed where nothing else is: by torch.load with weights_only, and by other unpicklers that go by names.

def _restore_tensor(buffer, shape, dtype, padded, x2):
    """A Tensor over the memory of a buffer, read-only where that is."""
    cdef Tensor memory, self = Tensor.__new__(Tensor)
    if (type(shape), type(dtype), type(padded), type(x2)) != (tuple, str, bool, bool):
        raise ValueError(f"the pickle is damaged: it describes a Tensor by {reprlib.repr((shape, dtype, padded, x2))}, "
                         f"expected a tuple of extents, the name of a type, and two flags")
    memory = import_array(np.frombuffer(buffer, np.uint8))
    self.x2_ = x2
    reserve_dims(self, len(shape))
    copy_description(self, memory)
    share_owner(self, memory)
    set_dtype(self, row_of_restored(dtype), padded)
    fill_restored_shape(self, shape)
    if count_bytes(self) != memory.size_:
        raise ValueError(f"the buffer has {memory.size_} bytes; a Tensor of shape {listed(shape)} of {dtype} needs "
                         f"{count_bytes(self)}: pass the buffers unchanged and in their original order")
    fill_pairs(self)
    return self


cdef int row_of_restored(str dtype) except NO_ROW:
    """The row of a type by the name that it has; no other name is in a pickle."""
    cdef int row = row_of_name(dtype)
    if row == NO_ROW:
        raise ValueError(f"the pickle is damaged, or of another version: it names the type {reprlib.repr(dtype)}; "
                         f"dlfp4 carries {KNOWN_NAMES}")
    return row


cdef int fill_restored_shape(Tensor self, tuple shape) except -1:
    """Extents, size and strides of a compact tensor."""
    cdef int k
    for k in range(self.dl.ndim):
        if type(shape[k]) is not int or not 0 <= shape[k] <= INT64_MAX:
            raise ValueError(f"the pickle is damaged: a Tensor of shape {listed(shape)} has an invalid extent")
        self.dl.shape[k] = shape[k]
    self.size_ = count_elements(self.dl.ndim, self.dl.shape)
    if self.size_ == 0:   # as of an import, which takes what is empty whatever its other extents
        settle_strides(self.dl.ndim, self.dl.shape, self.dl.strides, 0)
    elif (count_bits(self.size_, storage_bits(self)) < 0
            or not fill_compact_strides(self.dl.ndim, self.dl.shape, self.dl.strides)):
        raise ValueError(f"the pickle is damaged: shape {listed(shape)} {beyond_memory(self.size_)}")
    return 0


def _restore_scaled(data, scales, global_scale, format, axis, scale_layout, shape, encode_scale=None,
                    hadamard=None, offsets=None):
    """A ScaledTensor of its parts, a global scale of one row as it is; TensorProto calls this, too."""
    cdef Tensor beside = None if offsets is None else import_part(offsets)
    cdef bint are_biases = beside is not None and is_float(beside.row)
    cdef ScaledTensor self = assemble(data, scales, global_scale, _find_format(format), axis, scale_layout, shape,
                                      beside, are_biases)
    self = _in_shape_of(self, global_scale)
    if encode_scale is not None:
        self.encode_scale = checked_encode_scale(self, encode_scale)
    return with_rotation(self, parse_hadamard(hadamard))


def _in_shape_of(ScaledTensor self, global_scale):
    """The tensor with its global scale as it was stored: one number of one row, or of one matrix of a stack, stays
    (1,), where it would be () of a whole tensor."""
    if self.global_scale is None or self.global_scale.dl.ndim or not getattr(global_scale, "ndim", 0):
        return self
    cdef ScaledTensor result = another(self)
    result.global_scale = reshape_tensor(self.global_scale, (1,))
    return result


cdef Tensor checked_encode_scale(ScaledTensor self, encode_scale):
    """An encode scale with as many numbers as the global scale."""
    cdef Tensor stored = as_encode_scale(encode_scale)
    if self.global_scale is None or stored.size_ != self.global_scale.size_:
        raise ValueError(f"encode_scale has shape {shape_of(stored)}; expected as many numbers as global_scale has, "
                         f"{'none' if self.global_scale is None else self.global_scale.shape}")
    return stored


def _restore_turned(stack):
    """The transpose of a stack."""
    if type(stack) is not ScaledTensor:
        raise ValueError(f"the pickle is damaged: it transposes a {type(stack).__name__}, expected a ScaledTensor")
    return stack.mT
