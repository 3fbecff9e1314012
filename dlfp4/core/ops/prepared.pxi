# Weights in the order in which CUDA's matrix kernels read them (src/products/cuda/prepared.h), and those kernels. To
# callers "prepared" is a scale layout. It permutes elements too; code unaware of it gets the original order (`plain`).

cdef inline bint is_prepared(ScaledTensor self) noexcept:
    return self.prepared.rows > 0


cdef inline ScaledTensor plain(ScaledTensor self, stream=None):
    """The tensor in a layout that every operation reads, restored on the stream so that a graph captures the work."""
    if self.turned:
        _refuse_turned(self)
    return restore(self, stream) if is_prepared(self) else self


def _plain(ScaledTensor self, stream):
    """The same for dlfp4's Python files, with scales of the format's type."""
    cdef Place place = place_for(self.data, stream, self)
    return readable(self, &place)


cdef ScaledTensor prepare_tensor(ScaledTensor self):
    if is_prepared(self):
        return self
    if self.axis == -2:
        return self.mT.prepare().mT if self.ndim == 2 or self.turned else self
    if not on_cuda(self.data):
        return relayout(self, "linear", 0)
    return prepare_on_cuda(relayout(self, "linear", 0))


cdef struct Preparation:    # of weights, or back
    dlfp4_blocks blocks     # the weights as other operations read them
    int format
    int64_t rows
    int largest
    void *memory            # the prepared ones, or the report of an inspection
    bint back


cdef int prepare_at(const Place *place, void *call) noexcept nogil:
    cdef Preparation *p = <Preparation *> call
    return dlfp4_cuda_prepare(place.device, place.stream, &p.blocks, p.format, p.rows, p.largest, p.memory, p.back)


cdef int inspect_at(const Place *place, void *call) noexcept nogil:
    cdef Preparation *p = <Preparation *> call
    return dlfp4_cuda_inspect(place.device, place.stream, &p.blocks, p.format, p.rows, <dlfp4_cuda_report *> p.memory)


cdef ScaledTensor prepare_on_cuda(ScaledTensor given):
    """The prepared tensor if that can hold every value exactly, else the tensor itself.

    It waits for the device twice: to look at the scales, and at the end, because products read weights before the
    preceding kernel has ended, and that must not be the one that prepares them.
    """
    cdef Preparation call
    cdef Place place = place_for(given.data, None, given)
    cdef ScaledTensor source = widen_scales(given, &place)
    fill_blocks(&call.blocks, source, 0)
    call.format, call.rows, call.back = source.number, source.data.dl.shape[0], False
    cdef dlfp4_cuda_prepared_size size = dlfp4_cuda_size_prepared(call.format, call.rows, call.blocks.length)
    cdef dlfp4_cuda_report report
    cdef Touched touched
    cdef int status
    if size.blocks == 0 or not has_scale_of_matrices(source):
        return given
    report = inspect(source, &call, &place)
    if not dlfp4_cuda_can_prepare(call.format, &report):
        return given
    cdef Tensor memory = allocate_buffer((size.blocks, size.code_bytes + size.scale_bytes), UINT8, &place)
    call.largest, call.memory = report.largest, memory.dl.data
    touch_nothing(&touched)
    reads_parts(&touched, source)
    check_run(&place, run_on(&place, &touched, prepare_at, DLFP4_CUDA_IMAGE_products, &call, 0),
              f"preparing {source.format}")
    cdef ScaledTensor self = divide_prepared(source, memory, size, &place)
    self.prepared = Prepared(call.rows, call.blocks.length, report.largest,
                             dlfp4_cuda_is_exact_in_half(call.format, &report))
    with nogil:
        status = dlfp4_cuda_wait(place.device, place.stream)
    check_cuda(status, "waiting for prepared weights")
    return self


cdef bint has_scale_of_matrices(ScaledTensor self) except -1:
    """Whether a global scale, if there is one, is that of the tensor, or each matrix of a stack has one."""
    return lines_of_global_scale(self) == 0 or (self.ndim == 3 and self.global_scale.size_ == self.shape[0])


cdef ScaledTensor divide_prepared(ScaledTensor source, Tensor memory, dlfp4_cuda_prepared_size size,
                                  const Place *place):
    """Divide the prepared memory into codes and scales of blocks. A scale of the whole tensor is copied: it may share
    an allocation with the source's codes, and would keep those alive."""
    cdef Tensor codes = slice_tensor(memory, (slice(None), slice(size.code_bytes))), scales, unit = None, part
    if source.format.block is not None:
        scales = slice_tensor(memory, (slice(None), slice(size.code_bytes, None)))
    else:
        scales = copy_on(place_managed(source.scales, True), place)
    if source.global_scale is not None:
        unit = copy_on(place_managed(source.global_scale, True), place)
    for part in (codes, scales, unit):
        if part is not None:
            part.immutable = True   # products do not wait for writes to them
    return as_encoded(source, make_scaled(codes, scales, unit, source.format, source.axis, "prepared", source.shape,
                                          source.rotation, None))


cdef dlfp4_cuda_report inspect(ScaledTensor source, Preparation *call, const Place *place) except *:
    """Look at what decides whether the tensor can be prepared."""
    cdef dlfp4_cuda_report report
    cdef Touched touched
    cdef Tensor memory = allocate_buffer((sizeof(dlfp4_cuda_report),), UINT8, place), copied
    call.memory = memory.dl.data
    touch_nothing(&touched)
    reads_parts(&touched, source)
    check_run(place, run_on(place, &touched, inspect_at, DLFP4_CUDA_IMAGE_products, call, 0),
              f"preparing {source.format}")
    copied = memory.to_device("cpu")
    memcpy(&report, copied.dl.data, sizeof(dlfp4_cuda_report))
    return report


cdef ScaledTensor restore(ScaledTensor self, given):
    """The inverse of prepare_on_cuda: linear scales and the same codes, except for zeros under zero scales."""
    if self.axis == -2:
        return restore(self.mT, given).mT
    cdef Prepared prepared = self.prepared
    cdef const dlfp4_format_row *row = &dlfp4_formats[self.number]
    cdef Place place = place_for(self.data, given, self)
    cdef Tensor data = allocate_buffer((prepared.rows, prepared.columns), row.element, &place), scales = self.scales
    if self.format.block is not None:
        scales = allocate_buffer((prepared.rows, prepared.columns // row.length), row.scale, &place)
    cdef ScaledTensor result = as_encoded(
        self, make_scaled(data, scales, self.global_scale, self.format, -1, "linear", self.shape, self.rotation, None))
    cdef Preparation call
    cdef Touched touched
    fill_blocks(&call.blocks, result, 0)
    call.format, call.rows, call.largest, call.back = self.number, prepared.rows, prepared.largest, True
    call.memory = self.data.dl.data
    touch_nothing(&touched)
    reads(&touched, self.data)
    check_run(&place, run_on(&place, &touched, prepare_at, DLFP4_CUDA_IMAGE_products, &call, 0),
              f"restoring {self.format}")
    return result


def _facts_of_prepared(ScaledTensor self):
    """What a prepared weight's parts have to be read with, beside format, axis and shape; None of other tensors."""
    cdef Prepared *prepared = &self.prepared
    return (prepared.rows, prepared.columns, prepared.largest, prepared.exact_in_half) if prepared.rows else None


def _restore_prepared(data, scales, global_scale, format, int axis, shape, hadamard, facts):
    """A prepared weight of parts that were taken out of one, and of its facts."""
    cdef Tensor codes = import_part(data), stored = import_part(scales)
    cdef Tensor unit = None if global_scale is None else import_part(global_scale)
    cdef ScaledTensor self = make_scaled(codes, stored, unit, _find_format(format), axis, "prepared", tuple(shape),
                                         parse_hadamard(hadamard), None)
    self.prepared = Prepared(facts[0], facts[1], facts[2], facts[3])
    check_prepared(self)
    return self


cdef ScaledTensor slice_prepared(ScaledTensor self, Cut rows, Cut columns, tuple shape):
    """Whole blocks of rows, such as matrices of a stack: a view."""
    cdef dlfp4_cuda_prepared_size size = size_of_prepared(self)
    cdef int64_t in_row = size.blocks // divide_up(rows.extent, size.block_rows)
    cdef Tensor codes, scales = self.scales
    if (rows.first % size.block_rows or (rows.last % size.block_rows and rows.last != rows.extent)
            or columns.last - columns.first != columns.extent):
        raise ValueError(f"rows {rows.first}:{rows.last} of {rows.extent} and columns {columns.first}:{columns.last} "
                         f"of {columns.extent} of {summary_of(self)}: prepared, it is sliced between blocks of "
                         f"{size.block_rows} rows; call .with_scale_layout('linear') first")
    blocks = slice(rows.first // size.block_rows * in_row, divide_up(rows.last, size.block_rows) * in_row)
    codes = slice_tensor(self.data, blocks)
    if self.format.block is not None:
        scales = slice_tensor(scales, blocks)
    cdef Tensor unit = unit_of_lines(self, self.global_scale, rows.first, rows.last)
    cdef ScaledTensor part = make_scaled(codes, scales, unit, self.format, -1, "prepared", shape, self.rotation, None)
    part.prepared = Prepared(rows.last - rows.first, self.prepared.columns, self.prepared.largest,
                             self.prepared.exact_in_half)
    return as_encoded_part(self, rows.first, rows.last, part)


cdef int check_prepared(ScaledTensor self) except -1:
    """Whether the memory has the size that kernels will read, and the tensor the shape that they will take it for."""
    cdef dlfp4_cuda_prepared_size size
    cdef Tensor codes = self.data
    lines, length = as_lines(self.shape, self.axis)
    if self.prepared.rows != lines or not length <= self.prepared.columns < length + MOST_PADDED:
        raise ValueError(f"a prepared {self.format} of {self.prepared.rows} rows and {self.prepared.columns} columns "
                         f"cannot have shape {self.shape} with blocks along axis {self.axis}: pass what belongs to the "
                         f"parts of w.prepare()")
    size = size_of_prepared(self)
    if codes.row != UINT8 or not has_shape(codes, (size.blocks, size.code_bytes)):
        raise ValueError(f"data is {dtype_name(codes)} of shape {shape_of(codes)}; a prepared {self.format} of "
                         f"{self.prepared.rows} rows and {self.prepared.columns} columns has uint8 of shape "
                         f"{(size.blocks, size.code_bytes)}: pass the parts of w.prepare() as they are")
    if not lies_in_one_piece(self):
        raise ValueError("the parts of a prepared weight lie apart, and kernels read the scales behind the codes of "
                         "each block: pass the parts of w.prepare() themselves, not copies of each")
    return 0


cdef dlfp4_cuda_prepared_size size_of_prepared(ScaledTensor self) noexcept:
    return dlfp4_cuda_size_prepared(self.number, self.prepared.rows, self.prepared.columns)


cdef bint lies_in_one_piece(ScaledTensor self) noexcept:
    """Whether the scales of each block of a prepared weight follow its codes."""
    cdef dlfp4_cuda_prepared_size size = size_of_prepared(self)
    cdef int64_t pitch = size.code_bytes + size.scale_bytes
    cdef Tensor codes = self.data, stored = self.scales
    if size.blocks > 1 and codes.dl.strides[0] != pitch:
        return False
    return self.format.block is None or (
        (size.blocks == 1 or stored.dl.strides[0] == pitch)
        and <char *> stored.dl.data == <char *> codes.dl.data + size.code_bytes)


def _size_of_prepared(format, int64_t rows, int64_t columns):
    """The blocks of a prepared weight, of each the bytes of its codes and of its scales, and its rows."""
    cdef dlfp4_cuda_prepared_size size = dlfp4_cuda_size_prepared(_find_format(format).number, rows, columns)
    return size.blocks, size.code_bytes, size.scale_bytes, size.block_rows


# ---- Products; dlfp4/engines/cuda.py says which operands are taken

cdef dict FOUND_TACTICS = {}   # by device and problem: finding them costs microseconds

cdef enum:
    MOST_FOUND = 4096   # entries before the dictionary is emptied: shapes may never repeat
    MOST_PADDED = 128   # elements of a block, which completes a line


def _find_tactics(ScaledTensor b, rows):
    """The names of the kernels for `rows` rows times prepared weights, the best guess first."""
    cdef int numbers[64]
    cdef int device = b.data.dl.device.device_id, count
    key = (device, b.number, rows, b.shape)
    found = look_up(FOUND_TACTICS, key)
    if found is None:
        load_kernels(device, DLFP4_CUDA_IMAGE_products)
        check_kernel(dlfp4_cuda_find_tactics(device, b.number, rows, b.shape[1], b.shape[0], numbers, 64, &count),
                     "choosing a kernel")
        found = keep_tactics(key, numbers, count)
    return found


cdef tuple keep_tactics(key, const int *numbers, int count):
    """The names of the kernels that were found for a problem."""
    cdef int k
    if len(FOUND_TACTICS) >= MOST_FOUND:
        FOUND_TACTICS.clear()
    found = FOUND_TACTICS[key] = tuple([dlfp4_cuda_tactic_name(numbers[k]).decode() for k in range(count)])
    return found


cdef dict tactic_numbers():
    cdef int number = 0
    numbers = {}
    while dlfp4_cuda_tactic_name(number) != NULL:
        numbers[dlfp4_cuda_tactic_name(number).decode()] = number
        number += 1
    return numbers


cdef dict TACTICS = tactic_numbers()


def _tactic_names():
    """The names of all kernels: the first serves every GPU, the others compute capability 9.0."""
    return tuple(TACTICS)


def _traits(x):
    """What backends judge an operand by: of two operands that are equal here they take both or neither."""
    cdef Tensor elements = elements_of(x)
    cdef ScaledTensor self
    if type(x) is not ScaledTensor:
        return (elements.row, shape_of(elements), elements.dl.device.device_type, elements.dl.device.device_id,
                is_outline(elements))
    self = x
    return (self.number, self.shape, elements.dl.device.device_type, elements.dl.device.device_id,
            is_outline(elements), self.axis, self.scale_layout, self.prepared.exact_in_half)


def _exact_in_half(ScaledTensor b):
    """Whether prepared weights are exact as float16."""
    return b.prepared.exact_in_half


def _reads_codes(ScaledTensor a, ScaledTensor b, str tactic):
    """Whether a kernel multiplies the codes and scales of a, as they lie, by prepared weights b."""
    cdef int64_t depth = a.shape[len(a.shape) - 1], slice
    if a.number != b.number or a.axis != -1 or a.scale_layout_row != DLFP4_LAYOUT_linear or a.data.dl.shape[1] != depth:
        return False
    slice = dlfp4_cuda_reads_codes(a.number, depth, TACTICS[tactic])
    return slice > 0 and has_rows_at(a.data, 16) and has_rows_at(a.scales, slice // dlfp4_formats[a.number].length)


cdef bint has_rows_at(Tensor self, int64_t step) noexcept:
    """Whether the rows of a matrix lie at multiples of so many bytes, their elements side by side."""
    return self.dl.strides[1] == 1 and <uintptr_t> self.dl.data % step == 0 \
        and (self.dl.shape[0] == 1 or times(self.dl.strides[0], storage_bits(self)) % (8 * step) == 0)


cdef struct Multiplication:
    dlfp4_cuda_product product
    int tactic


cdef int multiply_at(const Place *place, void *call) noexcept nogil:
    cdef Multiplication *m = <Multiplication *> call
    return dlfp4_cuda_multiply(place.device, place.stream, &m.product, m.tactic)


def _multiply_on_cuda(Tensor a, ScaledTensor b, Tensor out, alpha, factor, str tactic, stream, Tensor scales=None):
    """out = alpha * factor * a @ b: a matrix of 16-bit floats by prepared weights (K, N), into compact memory.

    With `scales`, a holds codes: see _reads_codes.
    """
    cdef Place place = place_for(a, stream, a, out)
    cdef Tensor rows, target, result
    cdef Multiplication call
    cdef Touched touched
    memset(&call, 0, sizeof(call))
    touch_nothing(&touched)
    secure(a)
    secure(out)
    rows = as_rows(a, &place)
    target = as_rows(out, &place)
    result = writable_rows(target, &place)
    if scales is None and not has_aligned_rows(rows):
        rows = copy_on(rows, &place)
    fill_weights(&call.product, b, factor, &touched)
    fill_rows(&call.product, rows, scales, &touched)
    fill_result(&call.product, result, &touched)
    call.product.alpha = dlfp4_host_narrow(alpha)
    call.tactic = TACTICS[tactic]
    check_run(&place, run_on(&place, &touched, multiply_at, DLFP4_CUDA_IMAGE_products, &call, 0),
              "multiplying matrices")
    if result is not target:
        convert(result, target, NULL, &place)


cdef Tensor writable_rows(Tensor target, const Place *place):
    """A matrix for results, or memory beside it where the kernels cannot write its rows."""
    if is_aligned(target) and (target.dl.shape[1] <= 1 or target.dl.strides[1] == 1):
        return target
    return allocate_on(place, target.row, 2, target.dl.shape, False)


cdef inline int64_t row_step(Tensor matrix) noexcept:
    """The step from row to row; with a single row its stride means nothing."""
    return matrix.dl.strides[0] if matrix.dl.shape[0] > 1 else matrix.dl.shape[1]


cdef int fill_rows(dlfp4_cuda_product *product, Tensor rows, Tensor scales, Touched *touched) except -1:
    product.rows, product.depth = rows.dl.shape[0], rows.dl.shape[1]
    product.x = rows.dl.data
    product.x_stride = row_step(rows)
    product.x_is_half = rows.row == FLOAT16
    reads(touched, rows)
    if scales is not None:
        secure(scales)
        product.x_scales = scales.dl.data
        product.x_scale_stride = scales.dl.strides[0]
        reads(touched, scales)
    return 0


cdef void fill_result(dlfp4_cuda_product *product, Tensor result, Touched *touched) noexcept:
    product.columns = result.dl.shape[1]
    product.y = result.dl.data
    product.y_stride = row_step(result)
    product.y_bytes = storage_bits(result) // 8
    product.y_is_half = result.row == FLOAT16
    writes(touched, result)


cdef int fill_weights(dlfp4_cuda_product *product, ScaledTensor b, Tensor factor, Touched *touched) except -1:
    """Of prepared weights nothing is waited for: preparing them has, and they do not change."""
    cdef Tensor own = b.scales if scales_whole(b.number) else b.global_scale, part
    product.weights = b.data.dl.data
    product.format = b.number
    product.largest = b.prepared.largest
    product.stored_depth = b.prepared.columns
    for part in (b.data, b.scales, own, factor):
        if part is not None:
            secure(part)
    reads_ready(touched, b.data)
    reads_ready(touched, b.scales)
    reads_ready(touched, b.global_scale)
    reads(touched, factor)
    if own is not None:
        product.factors[0] = <const float *> own.dl.data
    if factor is not None:
        product.factors[1] = <const float *> factor.dl.data
    return 0


cdef bint has_aligned_rows(Tensor self) noexcept:
    """Whether bulk copies can read the rows: 16 bytes at a time."""
    cdef int64_t row = row_step(self)
    return has_dense_lines(self) and row % 8 == 0 and row >= self.dl.shape[1] \
        and <uintptr_t> self.dl.data % 16 == 0
