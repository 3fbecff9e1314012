# What a conversion changes, for `ScaledTensor.to`: kernels on rows of float32 numbers that lie next to one another. The
# Tensors are of the library's own making, so that nothing is checked here.

cdef struct Changes:
    dlfp4_grid grid
    const float *before
    const float *after
    float *changes
    float *sizes
    int joins
    int64_t code_bytes
    dlfp4_stored best
    dlfp4_stored other
    dlfp4_changes *result


cdef int find_changes_at(const Place *place, void *call) noexcept nogil:
    cdef Changes *c = <Changes *> call
    if is_host(place):
        return dlfp4_host_find_changes(&c.grid, c.before, c.after, c.changes, c.sizes, c.joins)
    return dlfp4_cuda_find_changes(place.device, place.stream, &c.grid, c.before, c.after, c.changes, c.sizes, c.joins)


cdef int sum_up_changes_at(const Place *place, void *call) noexcept nogil:
    cdef Changes *c = <Changes *> call
    if is_host(place):
        return dlfp4_host_sum_up_changes(c.changes, c.sizes, c.grid.rows, c.result)
    return dlfp4_cuda_sum_up_changes(place.device, place.stream, c.changes, c.sizes, c.grid.rows, c.result)


cdef int take_better_at(const Place *place, void *call) noexcept nogil:
    cdef Changes *c = <Changes *> call
    if is_host(place):
        return dlfp4_host_take_better(&c.grid, c.before, c.code_bytes, &c.best, &c.other)
    return dlfp4_cuda_take_better(place.device, place.stream, &c.grid, c.before, c.code_bytes, &c.best, &c.other)


cdef int fill_grid(dlfp4_grid *grid, Tensor values, block) except -1:
    grid.rows, grid.columns = values.shape
    grid.lines, grid.length = block
    return 0


def _find_changes(Tensor before, Tensor after, block, Tensor changes, Tensor sizes, bint joins):
    """Write, or with `joins` raise, the largest change and magnitude of each block of so many lines and elements."""
    cdef Place place = place_of(before)
    cdef Changes call
    cdef Touched touched
    fill_grid(&call.grid, before, block)
    call.before, call.after = <const float *> before.dl.data, <const float *> after.dl.data
    call.changes, call.sizes = <float *> changes.dl.data, <float *> sizes.dl.data
    call.joins = joins
    touch_nothing(&touched)
    reads(&touched, before)
    reads(&touched, after)
    writes(&touched, changes)
    writes(&touched, sizes)
    check_run(&place, run_on(&place, &touched, find_changes_at, DLFP4_CUDA_IMAGE_blocks, &call, before.size_),
              "comparing values")


def _sum_up_changes(Tensor changes, Tensor sizes):
    """How many blocks changed, and the largest change of an element over the largest magnitude of its block."""
    cdef Place place = place_of(changes)
    cdef int64_t words = sizeof(dlfp4_changes) // 8
    cdef Tensor result = allocate_on(&place, row_of_argument("uint64"), 1, &words, False), there
    cdef Changes call
    cdef Touched touched
    call.changes, call.sizes = <float *> changes.dl.data, <float *> sizes.dl.data
    call.grid.rows = changes.size_
    call.result = <dlfp4_changes *> result.dl.data
    touch_nothing(&touched)
    reads(&touched, changes)
    reads(&touched, sizes)
    writes(&touched, result)
    check_run(&place, run_on(&place, &touched, sum_up_changes_at, DLFP4_CUDA_IMAGE_blocks, &call, changes.size_),
              "comparing values")
    there = result.to_device("cpu")
    call.result = <dlfp4_changes *> there.dl.data
    return call.result.changed, call.result.largest


def _take_better(Tensor exact, block, best, other):
    """Replace blocks by others whose squared errors have a smaller sum; both are (decoded values, codes, scales)."""
    cdef Place place = place_of(exact)
    cdef Tensor values, codes, scales, other_values, other_codes, other_scales
    cdef Changes call
    cdef Touched touched
    values, codes, scales = best
    other_values, other_codes, other_scales = other
    fill_grid(&call.grid, exact, block)
    call.before = <const float *> exact.dl.data
    call.code_bytes = times(storage_bits(codes), codes.dl.shape[1]) // 8 // scales.dl.shape[1]
    call.best = dlfp4_stored(<const float *> values.dl.data, <uint8_t *> codes.dl.data, <uint8_t *> scales.dl.data)
    call.other = dlfp4_stored(<const float *> other_values.dl.data, <uint8_t *> other_codes.dl.data,
                              <uint8_t *> other_scales.dl.data)
    touch_nothing(&touched)
    for part in (exact, values, other_values, other_codes, other_scales):
        reads(&touched, part)
    writes(&touched, codes)
    writes(&touched, scales)
    check_run(&place, run_on(&place, &touched, take_better_at, DLFP4_CUDA_IMAGE_blocks, &call, exact.size_),
              "choosing scales")
