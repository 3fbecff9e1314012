# Products of rows that are divided among experts; dlfp4/grouped.py says which operands are taken.

cdef struct GroupedProduct:
    MatrixProduct product
    dlfp4_groups groups


cdef int multiply_groups_on_host_at(const Place *place, void *call) noexcept nogil:
    cdef GroupedProduct *g = <GroupedProduct *> call
    cdef MatrixProduct *m = &g.product
    return dlfp4_host_grouped_matmul(m.a, m.b, m.length, &g.groups, m.result, m.options, m.workspace)


def _multiply_groups_on_host(a, w, Tensor offsets, Tensor indices, Tensor weights, Tensor result, alpha, rounds,
                             bint gathers):
    """Rows of a matrix times the matrices of a stack: `w` is a stack (E, N, K) of blocks, or elements (E, K, N).

    `indices` are lines of `a` where it gathers, and rows of the result where there are weights. What says where rows
    lie is copied and checked first, so that nobody can change it afterwards.
    """
    cdef Factor of_a, of_w
    cdef dlfp4_matrix matrix
    cdef dlfp4_matmul_options options
    cdef GroupedProduct call
    cdef object left = plain_on(a, &ON_HOST), right = plain_on(w, &ON_HOST)
    cdef int64_t rows = a.shape[0] if indices is None else indices.dl.shape[0]
    offsets = read_numbers(offsets)
    fill_grouped(&of_a, &of_w, &matrix, left, right, result)
    call.groups = dlfp4_groups(rows, of_w.shape[0], of_w.strides[0], <const int64_t *> offsets.dl.data, NULL, NULL,
                               NULL)
    check_ends(&call.groups)
    if indices is not None:
        indices = read_numbers(indices)
        check_indices(&call.groups, indices, a.shape[0] if gathers else matrix.rows)
        call.groups.gather = <const int64_t *> indices.dl.data if gathers else NULL
    if weights is not None:
        weights = duplicate(weights)
        call.groups.scatter = <const int64_t *> indices.dl.data
        call.groups.weights = <const float *> weights.dl.data
    fill_product_options(&options, alpha, rounds)
    call.product = MatrixProduct(&of_a.lines, &of_w.lines, of_a.length, &matrix, &options, NULL)
    run_grouped(&call)


cdef int fill_grouped(Factor *a, Factor *w, dlfp4_matrix *result, left, right, Tensor rows) except -1:
    """Rows times the lines of a stack, whose axes are experts and N, into a matrix."""
    fill_factor(a, left, -1, "x")
    fill_factor(w, right, -1 if type(right) is ScaledTensor else -2, "w")
    a.lines.step = 1 if type(left) is ScaledTensor else a.strides[0]
    w.lines.step = w.strides[1]
    return fill_matrix(result, rows)


cdef int run_grouped(GroupedProduct *call) except -1:
    cdef MatrixProduct *m = &call.product
    cdef int64_t bytes = dlfp4_host_grouped_matmul_workspace(m.a, m.b, m.length, &call.groups, m.result, m.options)
    return run_with_workspace(&m.workspace, bytes, multiply_groups_on_host_at, call, "multiplying by experts")


# ---- Where rows belong

cdef int INT64 = row_of_argument("int64")


cdef Tensor read_numbers(Tensor self):
    """int32 or int64 of one dimension, copied as int64."""
    cdef int64_t count = self.dl.shape[0], step = self.dl.strides[0], k
    cdef Tensor result
    cdef int64_t *numbers
    secure(self)
    check_readable(self)
    result = allocate_on(&ON_HOST, INT64, 1, &count, False)
    numbers = <int64_t *> result.dl.data
    for k in range(count):
        if self.dl.dtype.bits == 32:
            numbers[k] = (<const int32_t *> self.dl.data)[k * step]
        else:
            numbers[k] = (<const int64_t *> self.dl.data)[k * step]
    return result


cdef int check_ends(const dlfp4_groups *groups) except -1:
    """Whether offsets are where experts' rows end."""
    cdef int64_t last = 0, e
    for e in range(groups.experts):
        if not last <= groups.ends[e] <= groups.rows:
            raise ValueError(f"offsets[{e}] is {groups.ends[e]}, after {last}, and there are {groups.rows} rows: "
                             f"expected where each expert's rows end, in order, such as numpy.cumsum of their numbers")
        last = groups.ends[e]
    return 0


cdef int check_indices(const dlfp4_groups *groups, Tensor indices, int64_t count) except -1:
    """Whether the indices of experts' rows are of `count` rows; those beyond the last end are not read."""
    cdef const int64_t *numbers = <const int64_t *> indices.dl.data
    cdef int64_t routed = groups.ends[groups.experts - 1] if groups.experts else 0, k
    for k in range(routed):
        if not 0 <= numbers[k] < count:
            raise ValueError(f"indices[{k}] is {numbers[k]}, and there are {count} tokens: expected numbers of tokens, "
                             f"counted from 0")
    return 0


# ---- On a CUDA device: nothing that says where rows belong is read by the host

def _has_grouped(ScaledTensor w):
    """Whether a stack's CUDA device has kernels for experts of it: prepared, or of bytes."""
    cdef int device = w.data.dl.device.device_id
    load_kernels(device, DLFP4_CUDA_IMAGE_grouped)
    cdef int status = dlfp4_cuda_need_grouped(device, w.number if is_prepared(w) else -1)
    if not dlfp4_cuda_is_unserved(status):
        check_cuda(status, "looking for kernels by experts")
    return status == 0


cdef struct RoutedProduct:      # of prepared weights, or of bytes
    bint has_bytes
    dlfp4_cuda_product product
    dlfp4_cuda_bytes_product of_bytes
    int factor_step
    dlfp4_cuda_routing routing


cdef int multiply_groups_at(const Place *place, void *call) noexcept nogil:
    cdef RoutedProduct *r = <RoutedProduct *> call
    if r.has_bytes:
        return dlfp4_cuda_grouped_matmul_bytes(place.device, place.stream, &r.of_bytes, &r.routing)
    return dlfp4_cuda_grouped_matmul(place.device, place.stream, &r.product, r.factor_step, &r.routing)


def _multiply_groups_on_cuda(x, ScaledTensor w, Tensor offsets, Tensor indices, Tensor weights, Tensor out, alpha,
                             factor, bint gathers, stream):
    """alpha * factor * rows by the matrices of a stack (E, N, K): 16-bit floats by prepared ones, or FP8 by FP8."""
    cdef Place place = place_for(elements_of(x), stream, x, out)
    cdef Tensor result, workspace
    cdef object rows, stack   # to be kept until the launch, as the workspace
    cdef int64_t bytes
    cdef RoutedProduct call
    cdef Touched touched
    memset(&call, 0, sizeof(call))
    touch_nothing(&touched)
    secure(out)
    result = writable_rows(out, &place)
    offsets, indices, weights = [in_one_piece(part, &place) for part in (offsets, indices, weights)]
    call.has_bytes = not is_prepared(w)
    if call.has_bytes:
        rows, stack = as_bytes(x, &place), as_bytes(w, &place)
        fill_bytes(&call.of_bytes.x, rows, &touched)
        fill_bytes(&call.of_bytes.w, stack, &touched)
        fill_result_of_bytes(&call.of_bytes, result, &touched)
        call.of_bytes.depth, call.of_bytes.alpha = w.shape[2], dlfp4_host_narrow(alpha)
    else:
        rows = x if has_aligned_rows(x) else copy_on(x, &place)
        secure(rows)
        fill_weights(&call.product, w, factor, &touched)
        fill_rows(&call.product, rows, None, &touched)
        fill_result(&call.product, result, &touched)
        call.product.alpha = dlfp4_host_narrow(alpha)
        call.factor_step = w.global_scale is not None and w.global_scale.dl.ndim > 0
    call.product.rows = call.of_bytes.rows = x.shape[0] if indices is None else indices.dl.shape[0]
    fill_routing(&call.routing, offsets, indices, weights, gathers, &touched)
    call.routing.tokens = result.dl.shape[0] if weights is not None else x.shape[0]
    bytes = dlfp4_cuda_grouped_matmul_bytes_workspace(&call.of_bytes, &call.routing) if call.has_bytes \
        else dlfp4_cuda_grouped_matmul_workspace(&call.product, &call.routing)
    if call.has_bytes and dlfp4_cuda_brings_scales(&call.of_bytes, &call.routing):
        load_kernels(place.device, DLFP4_CUDA_IMAGE_blocks)
    workspace = allocate_buffer((max(bytes, 0),), UINT8, &place)   # below 0 the kernels refuse the extents
    call.routing.workspace = workspace.dl.data
    check_run(&place, run_on(&place, &touched, multiply_groups_at, DLFP4_CUDA_IMAGE_grouped, &call, 0),
              "multiplying by experts")
    if result is not out:
        convert(result, out, NULL, &place)


cdef int fill_routing(dlfp4_cuda_routing *routing, Tensor offsets, Tensor indices, Tensor weights, bint gathers,
                      Touched *touched) except -1:
    cdef Tensor part
    for part in (offsets, indices, weights):
        if part is not None:
            secure(part)
            reads(touched, part)
    routing.experts = offsets.dl.shape[0]
    routing.ends, routing.end_bits = offsets.dl.data, offsets.dl.dtype.bits
    routing.gathers, routing.adds = gathers, weights is not None
    if indices is not None:
        routing.indices, routing.index_bits = indices.dl.data, indices.dl.dtype.bits
    if weights is not None:
        routing.weights = <const float *> weights.dl.data
    return 0


cdef object in_one_piece(Tensor numbers, const Place *place):
    """A vector without steps, or None."""
    return numbers if numbers is None or has_dense_lines(numbers) else copy_on(numbers, place)
