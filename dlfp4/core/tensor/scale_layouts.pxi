# ScaledTensor.with_scale_layout: the same scales in another order.

cdef ScaledTensor relayout(ScaledTensor self, name, int fill):
    cdef Place place
    if is_one_of(name, (self.scale_layout,)):
        return self
    if is_one_of(name, ("prepared",)):
        raise ValueError("scale_layout='prepared': call .prepare(), which gives it where a tensor can have it")
    check_name_of_layout(name)
    place = place_for(self.scales, None, self)
    return relayout_on(self, name, fill, &place)


cdef ScaledTensor relayout_on(ScaledTensor self, name, int fill, const Place *place):
    """In another layout, on the stream of a place."""
    cdef Tensor scales = self.scales, result
    cdef int64_t rows, columns
    buffer = _buffers_of(self.shape, self.format, self.axis, name, True, dtype_name(scales))[1]   # refuses the unknown
    rows, columns = lines_of_scales(self)
    if self.scale_layout == "linear":
        scales = canonical_scales(self)
        scales = scales if is_compact_tensor(scales) else copy_on(scales, place)
    transposed = name == "linear" and lies_across(self)
    result = allocate_buffer((rows, columns) if transposed else buffer.shape, scales.row, place)
    run_relayout(Relayout(scales.dl.data, result.dl.data, self.scale_layout_row, SCALE_LAYOUTS[name], rows, columns,
                          storage_bits(result) // 8, fill), scales, result, place)
    # New scales lie on the device, so managed memory must count as the device's: the host could not read all parts.
    return as_encoded(self, make_scaled(
        place_managed(self.data, True), copy_on(result.mT, place) if transposed else result,
        place_managed(self.global_scale, True), self.format, self.axis, name, self.shape, self.rotation,
        self.offsets))   # integers have linear scales alone


cdef struct Relayout:     # scales that move from one layout to another
    void *source
    void *result
    int layout, result_layout
    int64_t rows, columns   # without padding
    int itemsize
    uint8_t fill            # of the padding


cdef int relayout_at(const Place *place, void *call) noexcept nogil:
    cdef Relayout *r = <Relayout *> call
    if is_host(place):
        return dlfp4_host_convert_scales(r.source, r.layout, r.result, r.result_layout, r.rows, r.columns, r.itemsize,
                                         r.fill)
    return dlfp4_cuda_convert_scales(place.device, place.stream, r.source, r.layout, r.result, r.result_layout, r.rows,
                                     r.columns, r.itemsize, r.fill)


cdef int run_relayout(Relayout call, Tensor scales, Tensor result, const Place *place) except -1:
    cdef Touched touched
    secure(scales)
    check_readable(scales)
    if result.size_ == 0:
        return 0
    touch_nothing(&touched)
    reads(&touched, scales)
    writes(&touched, result)
    return check_run(place, run_on(place, &touched, relayout_at, DLFP4_CUDA_IMAGE_blocks, &call, result.size_),
                     "converting scales")


cdef tuple lines_of_scales(ScaledTensor self):
    """The matrix of scales with a row a line, without padding."""
    rows = _buffers_of(self.shape, self.format, self.axis, "linear", True)[1].shape
    return rows[::-1] if lies_across(self) else rows


cdef Tensor canonical_scales(ScaledTensor self):
    """Linear scales with a row a line."""
    return self.scales.mT if lies_across(self) else self.scales


cdef Tensor allocate_buffer(tuple shape, int row, const Place *place):
    """Memory for one of a format's buffers, where it is made."""
    cdef int64_t dims[2]
    cdef int k
    for k in range(len(shape)):
        dims[k] = shape[k]
    return allocate_on(place, row, len(shape), dims, False)


cdef int parse_fill(fill, int default) except -1:
    if fill is None:
        return default
    number = parse_integer(fill, "fill")
    if not 0 <= number <= 255:
        raise ValueError(f"fill={fill}: expected a byte, from 0 to 255")
    return number
