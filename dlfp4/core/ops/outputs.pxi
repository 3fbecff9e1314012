# Results in the caller's memory (out=): all checks are made before anything is written.

cdef Tensor check_out(out, Tensor source, int row):
    """Memory for a result of source's shape. It may be source's own where every element keeps its bytes."""
    cdef Tensor self = _borrow_out(out)
    check_writable(self, row)
    check_beside(self, source)
    if self.dl.ndim != source.dl.ndim or memcmp(self.dl.shape, source.dl.shape, self.dl.ndim * sizeof(int64_t)):
        refuse_shape(self, shape_of(source))
    if overlaps(self, source) and not same_places(self, source):
        refuse_overlap(self, source, "out overlaps the input; in place works where every element keeps its bytes, "
                                     "otherwise give other memory")
    return self


cdef Tensor check_out_values(out, ScaledTensor source, int row):
    """Memory for the values of a block-scaled tensor."""
    cdef Tensor self = out
    check_writable(self, row)
    if not has_shape(self, source.shape):
        refuse_shape(self, source.shape)
    check_clear_of_parts(self, source)
    return self


def _check_out_product(Tensor out, shape, dtype, tuple inputs):
    """Memory for a matrix product, which shares none with what the caller passed, where that is not None."""
    check_writable(out, row_of_argument(dtype))
    if not has_shape(out, shape):
        refuse_shape(out, shape)
    for given in inputs:
        if given is not None:
            check_clear_of_parts(out, given)
    if out.dl.ndim > 2 and not is_compact_tensor(out):
        raise ValueError(f"out has strides {strides_of(out)}; with more than two dimensions it must be compact")


cdef Tensor check_out_sums(out, tuple shape, tuple inputs):
    """Memory for sums of products, which kernels write one after another."""
    cdef Tensor self = _borrow_out(out)
    _check_out_product(self, shape, "float32", inputs)
    if not is_compact_tensor(self):
        raise ValueError(f"out has strides {strides_of(self)}; it must be compact")
    return self


cdef tuple check_out_scaled(out, tuple axes, Tensor source, _Rules rules, str scale_layout, bint pad, str per,
                            uint32_t rotation):
    """The caller's ScaledTensors, which must be what quantize would have allocated."""
    cdef ScaledTensor result
    cdef int axis
    cdef Py_ssize_t number
    cdef tuple results = out if type(out) is tuple else (out,)
    if len(results) != len(axes):
        raise ValueError(f"out has {len(results)} ScaledTensors for {len(axes)} axes")
    for number in range(len(axes)):
        if type(results[number]) is not ScaledTensor:
            raise TypeError(f"out is of type {type(results[number]).__name__}; expected a ScaledTensor, as quantize "
                            "returns it")
        result = results[number]
        axis = axes[number]
        if (result.number != rules.number or result.axis != axis or result.scale_layout != scale_layout
                or not has_shape(source, result.shape)):
            raise ValueError(f"out is {summary_of(result)}; the result has shape {shape_of(source)}, format "
                             f"{rules.format.name!r}, axis {axis} and scale_layout {scale_layout!r}")
        if result.global_scale is None and dlfp4_formats[rules.number].kind == DLFP4_TWO_LEVEL:
            raise ValueError(f"out is {summary_of(result)} without a global scale, for which the result needs memory; "
                             f"pass a ScaledTensor that quantize returned")
        check_zero_points(result)
        if result.rotation != rotation:
            raise ValueError(f"out has hadamard={result.hadamard}, the result {signs_of(rotation)}; pass what quantize "
                             f"returned with the same signs")
        check_granularity(result, rules, per)
        # These fields determine the parts' shapes; what remains to be checked is that blocks divide the shape.
        if pad or not load_acquire(&result.divides):
            _buffers_of(result.shape, rules.format.name, axis, scale_layout, pad, rules.scale_dtype, per)
            store_release(&result.divides, not pad)
        if not load_acquire(&result.is_writable):
            check_writable_parts(result)
            store_release(&result.is_writable, True)
        check_clear_of(result.data, "out's data", source)
        check_clear_of(result.scales, "out's scales", source)
        if result.global_scale is not None:
            check_clear_of(result.global_scale, "out's global scale", source)
        if result.offsets is not None:
            check_clear_of(result.offsets, "out's zero points", source)
    if len(results) == 2:
        check_apart(parts_of(results[0]), parts_of(results[1]))
    return results


cdef int check_zero_points(ScaledTensor result) except -1:
    """Whether out has the zero points that quantize makes, one after the other, or none."""
    own = own_offsets(result.format)
    found = "" if result.offsets is None else dtype_name(result.offsets)
    if found != own:
        named = {"": "neither zero points nor biases"}
        raise ValueError(f"out has {named.get(found, found + ' beside its scales')}, the result "
                         f"{named.get(own, own + ' zero points')}; pass what quantize returned")
    if own and not has_dense_lines(result.offsets):
        raise ValueError(f"out's zero points have strides {strides_of(result.offsets)} and shape "
                         f"{shape_of(result.offsets)}; those of a line must be neighbours: pass a .copy() of them")
    return 0


cdef int check_granularity(ScaledTensor result, _Rules rules, str per) except -1:
    """Whether scales have the type that was asked for, and global scales the shape."""
    cdef int row = row_of_argument(rules.scale_dtype) if rules.scale_dtype else dlfp4_formats[rules.number].scale
    if result.scales.row != row:
        raise ValueError(f"out's scales have dtype {dtype_name(result.scales)}, the result's "
                         f"{dlfp4_dtypes[row].name.decode()}; pass what quantize returned with this recipe")
    if result.global_scale is None or (per == "tensor" and result.global_scale.dl.ndim == 0):
        return 0
    expected = global_scales(result.shape, rules.format, result.axis, per)
    if not has_shape(result.global_scale, expected):
        raise ValueError(f"out's global scale has shape {shape_of(result.global_scale)}, the result's {expected}; pass "
                         f"what quantize returned with this recipe")
    return 0


# ---- The rules

cdef int check_writable(Tensor self, int row) except -1:
    """Whether a result of that type may be written to the caller's memory."""
    if self.row != row:
        raise TypeError(f"out has dtype {dtype_name(self)}, the result has {dlfp4_dtypes[row].name.decode()}: give "
                        f"memory of that type, or ask for the result in that of out")
    return check_own_memory(self, "out")


cdef int refuse_shape(Tensor self, tuple shape) except -1:
    raise ValueError(f"out has shape {shape_of(self)}, the result has {shape}")


cdef int check_writable_parts(ScaledTensor self) except -1:
    check_own_memory(self.data, "out's data")
    check_own_memory(self.scales, "out's scales")
    check_apart((self.data,), (self.scales,))
    if self.global_scale is not None:
        check_own_memory(self.global_scale, "out's global scale")
        check_apart((self.data, self.scales), (self.global_scale,))
    if self.offsets is not None:
        check_own_memory(self.offsets, "out's zero points")
        check_apart((self.data, self.scales), (self.offsets,))
    return 0


cdef int check_own_memory(Tensor self, str out) except -1:
    """Whether a result may be written to a tensor, which messages call `out`."""
    if self.immutable:
        raise BufferError(f"{out} has the memory of an array that never changes, such as those of JAX and TensorFlow, "
                          f"or of prepared weights; pass memory of dlfp4.empty or of another library, and hand on the "
                          f"result")
    if self.flags & DLPACK_FLAG_BITMASK_READ_ONLY:
        raise BufferError(f"{out} is read-only; give writable memory, or a .copy()")
    if meets_itself(self):
        raise ValueError(f"{out} has strides {strides_of(self)} for shape {shape_of(self)}: elements may share "
                         f"memory; pass a tensor in which each has its own")
    return 0


cdef int check_clear_of(Tensor self, str out, Tensor given) except -1:
    """Whether the kernels that read an input can write to a tensor without changing that input."""
    check_beside(self, given)
    if overlaps(self, given):
        refuse_overlap(self, given, f"{out} overlaps an input; give other memory")
    return 0


cdef int check_clear_of_parts(Tensor self, x) except -1:
    cdef Tensor part
    for part in parts_of(x):
        check_clear_of(self, "out", part)
    return 0


cdef int check_apart(tuple some, tuple others) except -1:
    """Whether parts of results have separate memory; rows of two may alternate, and two results may share the scale of
    the whole tensor."""
    cdef Tensor part, other
    for part in some:
        for other in others:
            if (part is None or other is None or not overlaps(part, other) or alternates(part, other)
                    or (part.size_ == 1 and other.size_ == 1 and same_places(part, other))):
                continue
            refuse_overlap(part, other, "parts of out overlap one another; give each its own memory")
    return 0


cdef int refuse_overlap(Tensor out, Tensor given, str message) except -1:
    """Raise ValueError, unless a loan has lost its memory, which the other then may use: that is the error to raise."""
    secure(out)
    secure(given)
    raise ValueError(message)


# ---- Who shares memory

cdef bint overlaps(Tensor a, Tensor b) noexcept nogil:
    """Whether the byte ranges of two tensors in one address space meet."""
    cdef int64_t a_low, a_high, b_low, b_high
    if a.size_ == 0 or b.size_ == 0 or is_outline(a) or is_outline(b):
        return False
    fill_byte_range(&a.dl, storage_bits(a), &a_low, &a_high)
    fill_byte_range(&b.dl, storage_bits(b), &b_low, &b_high)
    return a_low < b_high and b_low < a_high


cdef bint same_places(Tensor a, Tensor b) noexcept nogil:
    """Whether every element of one lies on the same bytes as that of the other, which has its shape."""
    cdef int k
    if a.dl.data != b.dl.data or storage_bits(a) != storage_bits(b) or storage_bits(a) < 8:
        return False
    for k in range(a.dl.ndim):
        if a.dl.shape[k] > 1 and a.dl.strides[k] != b.dl.strides[k]:
            return False
    return True


cdef bint meets_itself(Tensor self) noexcept nogil:
    """Whether elements may share memory, so that writes would race.

    They do not where each dimension steps beyond all that the dimensions with smaller steps reach. Strides that
    interleave without meeting are counted as shared; such memory does not occur in practice.
    """
    cdef int64_t steps[64]   # of dimensions with more than one element there are 62 at most
    cdef int64_t reaches[64]
    cdef int64_t step, reached = 0
    cdef int count = 0, k, place
    if self.size_ < 2 or is_compact_tensor(self):
        return False
    for k in range(self.dl.ndim):
        if self.dl.shape[k] < 2:
            continue
        step = self.dl.strides[k] if self.dl.strides[k] > 0 else -self.dl.strides[k]
        place = count
        while place > 0 and steps[place - 1] > step:
            steps[place] = steps[place - 1]
            reaches[place] = reaches[place - 1]
            place -= 1
        steps[place] = step
        reaches[place] = times(step, self.dl.shape[k] - 1)
        count += 1
    for k in range(count):
        if steps[k] <= reached:
            return True
        reached += reaches[k]
    return False


cdef bint alternates(Tensor a, Tensor b) noexcept nogil:
    """Whether the rows of two matrices alternate at one pitch, as in records that hold a row of each."""
    cdef int64_t pitch, first
    if a.dl.ndim != 2 or b.dl.ndim != 2 or not (has_dense_lines(a) and has_dense_lines(b)):
        return False
    pitch = times(a.dl.strides[0], storage_bits(a)) >> 3
    if pitch <= 0 or times(b.dl.strides[0], storage_bits(b)) != times(pitch, 8):
        return False
    first = (<int64_t> b.dl.data - <int64_t> a.dl.data) % pitch
    first += pitch if first < 0 else 0
    return first >= row_bytes(a) and first + row_bytes(b) <= pitch


cdef inline int64_t row_bytes(Tensor self) noexcept nogil:
    return (times(self.dl.shape[1], storage_bits(self)) + 7) >> 3
