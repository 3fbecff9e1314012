# Tensors as kernels are told of them.

# ---- Plain ones as matrices

cdef Tensor view_matrix(Tensor self):
    """The tensor as a matrix, without a copy; None where its leading dimensions are not one run."""
    cdef Tensor view
    if self.dl.ndim == 2:
        return self
    if self.dl.ndim == 0:
        raise ValueError("a 0-d tensor has no axis for blocks to run along; reshape it to (1,) first")
    view = make_view(self, 2)
    view.dl.shape[0] = count_elements(self.dl.ndim - 1, self.dl.shape)
    view.dl.shape[1] = self.dl.shape[self.dl.ndim - 1]
    if view.dl.shape[0] < 0:
        raise ValueError(f"shape {shape_of(self)} has more rows than can be counted")
    return finish_view(view) if fill_view_strides(view, self) else None


cdef Tensor flatten(Tensor self, const Place *place):
    """The tensor as a matrix; a copy, made where an operation runs, only where there is no view."""
    cdef Tensor view = view_matrix(self)
    return view if view is not None else view_matrix(copy_on(self, place))


cdef Tensor copy_on(Tensor self, const Place *place):
    """A compact copy, made and freed where an operation runs."""
    cdef Tensor result = allocate_on(place, self.row, self.dl.ndim, self.dl.shape, is_padded(self))
    convert(self, result, NULL, place)
    return result


cdef int fill_matrix(dlfp4_matrix *matrix, Tensor self) except -1:
    check_readable(self)
    if not SOURCE_ROWS >> self.row & 1:
        raise TypeError(f"{dtype_name(self)} is not block-scaled: expected float64, float32, bfloat16 or float16; "
                        f"convert it first, {'by dlfp4.cast' if is_float(self.row) else 'with its own library'}")
    matrix.data = self.dl.data
    matrix.rows = self.dl.shape[0]
    matrix.columns = self.dl.shape[1]
    matrix.strides[0] = self.dl.strides[0]
    matrix.strides[1] = self.dl.strides[1]
    matrix.code = self.dl.dtype.code
    matrix.bits = self.dl.dtype.bits
    return 0


cdef void turn_matrix(dlfp4_matrix *matrix) noexcept:
    """The same elements with columns as rows."""
    matrix.rows, matrix.columns = matrix.columns, matrix.rows
    matrix.strides[0], matrix.strides[1] = matrix.strides[1], matrix.strides[0]


cdef uint64_t SOURCE_ROWS = sum([(<uint64_t> 1) << row_of_argument(name) for name in _FLOATS])


# ---- Quantized ones as blocks

cdef void reads_parts(Touched *touched, ScaledTensor self) noexcept:
    reads(touched, self.data)
    reads(touched, self.scales)
    reads(touched, self.global_scale)
    reads(touched, self.offsets)


cdef int secure_parts(ScaledTensor self) except -1:
    """Secure the parts that were borrowed from a framework."""
    secure(self.data)
    secure(self.scales)
    if self.global_scale is not None:
        secure(self.global_scale)
    if self.offsets is not None:
        secure(self.offsets)
    return 0


cdef int fill_blocks(dlfp4_blocks *blocks, ScaledTensor self, uint8_t zero_scale) except -1:
    """The kernels' description of a ScaledTensor. `zero_scale` is the recipe's where it is to be written, else 0."""
    cdef const DLTensor *data = &self.data.dl
    cdef const DLTensor *scales = &self.scales.dl
    cdef bint swapped = lies_across(self)
    cdef int64_t lines = lines_of_global_scale(self)
    secure_parts(self)
    check_readable(self.data)
    check_readable(self.scales)
    blocks.data = data.data
    blocks.strides[0] = data.strides[swapped]
    blocks.strides[1] = data.strides[not swapped]
    blocks.length = data.shape[not swapped]
    blocks.scales = scales.data
    blocks.scale_strides[0] = scales.strides[swapped] if scales.ndim == 2 else 0
    blocks.scale_strides[1] = scales.strides[not swapped] if scales.ndim == 2 else 0
    if self.scale_layout_row > DLFP4_LAYOUT_linear and dlfp4_layouts[self.scale_layout_row].by_rows:
        blocks.scale_strides[0] = scales.shape[1] // dlfp4_layouts[self.scale_layout_row].run
    blocks.layout = self.scale_layout_row
    blocks.fill = zero_scale if self.scale_layout_row == DLFP4_LAYOUT_aiter else 0
    blocks.decodes = <float *> self.global_scale.dl.data if lines else NULL
    blocks.decode_lines = max(1, lines)
    blocks.finds_decodes = False
    blocks.rotation = self.rotation
    blocks.offsets = NULL
    return fill_offsets(blocks, self.offsets, swapped) if self.offsets is not None else 0


cdef int fill_offsets(dlfp4_blocks *blocks, Tensor offsets, bint swapped) except -1:
    """The kernels' description of zero points, or of biases of float32."""
    check_readable(offsets)
    blocks.offsets = offsets.dl.data
    blocks.offset_strides[0] = offsets.dl.strides[swapped]
    blocks.offset_strides[1] = offsets.dl.strides[not swapped]
    blocks.offset_code = offsets.dl.dtype.code
    blocks.offset_bits = offsets.dl.dtype.bits
    return 0
