# Slices of ScaledTensors: rows and columns between blocks, and tensors of a stack, over the same memory.

cdef struct Cut:     # of rows or of columns
    int64_t first, last
    int64_t step     # borders are its multiples
    int64_t extent   # and this end


cdef ScaledTensor slice_scaled(ScaledTensor self, key):
    """The part of a tensor that integers and slices choose; a view."""
    cdef Cut rows, columns
    if self.turned and type(key) is not tuple and key is not Ellipsis:
        return self.mT[key].mT
    _refuse_turned(self)
    if is_prepared(self) and self.axis == -2:
        raise ValueError(f"{summary_of(self)} cannot be sliced: it is the transpose of a prepared matrix, which is; "
                         f"slice that, .mT[...].mT")
    if not is_prepared(self) and self.scale_layout != "linear" and self.format.block is not None:
        raise ValueError(f"{summary_of(self)} cannot be sliced: only linear scales lie block by block; call "
                         f".with_scale_layout('linear') first")
    kept = read_key(self, key, &rows, &columns)
    if is_prepared(self):
        return slice_scaled(restore(self, None), key) if 0 in kept else slice_prepared(self, rows, columns, kept)
    set_borders(self, &rows, &columns)
    if 0 in kept:
        empty_borders(self, &rows, &columns)
    else:
        check_borders(self, &rows, "rows")
        check_borders(self, &columns, "columns")
    return take_part(self, rows, columns, kept)


cdef tuple read_key(ScaledTensor self, key, Cut *rows, Cut *columns):
    """Fill in which rows of the matrix, and which columns, an index chooses; returns the shape that it leaves."""
    cdef tuple shape = self.shape
    cdef int64_t first, last, extent, chosen = 1
    cdef int dim, ndim = len(shape)
    cdef bint apart = False
    rows.first, rows.extent = 0, 1
    kept = []
    for dim, entry in enumerate(full_key(self, key)):
        extent = shape[dim]
        if read_entry(self, entry, dim, &first, &last):
            kept.append(last - first)
        if dim == ndim - 1:
            columns[0] = Cut(first, last, 1, extent)
            break
        apart |= chosen > 1 and last - first != extent
        chosen = times(chosen, last - first)
        rows.first = times(rows.first, extent) + first
        rows.extent = times(rows.extent, extent)
    rows.last = rows.first + chosen
    if apart and 0 not in kept:
        raise BufferError(f"the rows that {key!r} takes of shape {shape} do not follow one another, and a "
                          f"ScaledTensor has them at one distance; slice each tensor of the stack, q[k][...]")
    return tuple(kept)


cdef list full_key(ScaledTensor self, key):
    """An entry for each dimension."""
    cdef list entries = list(key) if type(key) is tuple else [key]
    cdef int ndim = len(self.shape), given = 0, ellipses = 0
    for entry in entries:
        ellipses += entry is Ellipsis
        given += entry is not Ellipsis
    if ellipses > 1:
        raise IndexError("an index can have one ellipsis ('...') at most")
    if given > ndim:
        raise IndexError(f"{given} indices for a tensor of {ndim} dimensions, shape {self.shape}")
    place = entries.index(Ellipsis) if ellipses else len(entries)
    return entries[:place] + [slice(None)] * (ndim - given) + entries[place + 1:]


cdef bint read_entry(ScaledTensor self, entry, int dim, int64_t *first, int64_t *last) except -1:
    """The interval of a dimension that a slice or an integer takes; whether the dimension stays."""
    cdef int64_t extent = self.shape[dim]
    cdef Py_ssize_t start, stop, step
    if type(entry) is slice:
        PySlice_Unpack(entry, &start, &stop, &step)
        if step != 1:
            raise ValueError(f"{entry!r} has a step of {step}; a ScaledTensor is sliced in steps of 1, since blocks "
                             f"stay whole")
        last[0] = PySlice_AdjustIndices(extent, &start, &stop, 1)
        last[0] += start
        first[0] = start
        return True
    index = integer_of(entry)
    if dim >= len(self.shape) - 2:
        raise TypeError(f"{summary_of(self)} is not a stack along dimension {dim}, which integer {index} indexes: take "
                        f"a slice of whole blocks, or index its .data, its .scales, or the values of .dequantize()")
    first[0] = as_index(index, extent, dim)
    last[0] = first[0] + 1
    return False


cdef object integer_of(entry):
    try:   # arrays have __index__, and refuse unless they are one integer
        if not isinstance(entry, bool):
            return PyNumber_Index(entry)
    except TypeError:
        pass
    raise TypeError(f"index {entry!r} is of type {type(entry).__name__}; a ScaledTensor takes slices on block borders, "
                    f"'...' and, for one tensor of a stack, an integer")


cdef int set_borders(ScaledTensor self, Cut *rows, Cut *columns) except -1:
    """Where the matrix may be cut: between blocks, between groups that were transformed and, along packed elements,
    between bytes.
    """
    cdef const dlfp4_format_row *row = &dlfp4_formats[self.number]
    cdef Cut *across = rows if self.axis == -1 else columns
    cdef Cut *along = columns if self.axis == -1 else rows
    across.step = max(1, row.lines)
    along.step = row.length if row.length else 2 if is_subbyte(self.data.row) else 1
    if self.rotation and along.step < ROTATED_LENGTH:
        along.step = ROTATED_LENGTH
    return 0


cdef int empty_borders(ScaledTensor self, Cut *rows, Cut *columns) except -1:
    """Where to cut an empty tensor, whose lines are as long as those of others: blocks are completed."""
    cdef Cut *along = columns if self.axis == -1 else rows
    rows.first, rows.last = 0, rows.last - rows.first
    columns.first, columns.last = 0, columns.last - columns.first
    if not may_be_short(self.format):
        along.last = min(along.extent, round_up(along.last, step_of(self.format)))
    return 0


cdef int check_borders(ScaledTensor self, const Cut *cut, str what) except -1:
    if cut.first % cut.step == 0 and (cut.last % cut.step == 0 or cut.last == cut.extent):
        return 0
    lines, length = self.format.block or (1, 1)
    cuts = f"blocks: those of {lines}x{length}"
    if (length or 1) < ROTATED_LENGTH == cut.step:
        cuts = f"what the Hadamard transform took at a time: groups of {ROTATED_LENGTH}"
    raise ValueError(f"{what} {cut.first}:{cut.last} of {summary_of(self)} cut through {cuts} along axis {self.axis} "
                     f"have borders at multiples of {cut.step} {what}, and at the end, {cut.extent}")


cdef ScaledTensor take_part(ScaledTensor self, Cut rows, Cut columns, tuple shape):
    """The parts of rows and columns on borders."""
    cdef Cut lines = rows if self.axis == -1 else columns, along = columns if self.axis == -1 else rows
    cdef Tensor scales = self.scales, beside = None
    cdef int64_t in_matrix = lines_of_global_scale(self), last = lines.last
    elements, blocks = slice(along.first, along.last), slice(None)
    if along.last == along.extent:   # with the zeros that complete the last block
        elements = slice(along.first, None)
    data = slice_part(self, self.data, slice(lines.first, lines.last), elements)
    if scales.dl.ndim == 2:
        if dlfp4_formats[self.number].length or along.first == along.last:
            blocks = slice(along.first // along.step, divide_up(along.last, along.step))
        step = 1 if self.format.repeats_scales else lines.step
        scales = slice_part(self, scales, slice(lines.first // step, divide_up(lines.last, step)), blocks)
        beside = slice_offsets(self, slice(lines.first // step, divide_up(lines.last, step)), blocks)
    if in_matrix > 1 and 0 in shape:   # matrices of a stack have scales, even without lines
        last = in_matrix * count_of(shape[:len(shape) - 2])
    unit = unit_of_lines(self, self.global_scale, lines.first, last)
    return as_encoded_part(self, lines.first, last, make_scaled(
        data, scales, unit, self.format, self.axis, "linear", shape, self.rotation, beside))


cdef Tensor unit_of_lines(ScaledTensor self, Tensor unit, int64_t first, int64_t last):
    """The global or encode scale of some lines, where lines or matrices have their own: one matrix has a number."""
    cdef int64_t lines = lines_of_global_scale(self)
    cdef Tensor part
    if lines == 0:
        return unit
    if unit.dl.ndim != 1:   # an encode scale, in the shape that it was given in
        unit = reshape_tensor(unit.copy(), (-1,))
    part = slice_tensor(unit, slice(first // lines, divide_up(last, lines)))
    return part if lines == 1 or part.size_ != 1 else reshape_tensor(part, ())


cdef ScaledTensor as_encoded_part(ScaledTensor source, int64_t first, int64_t last, ScaledTensor self):
    """The tensor, which has some lines of `source` and their encode scale."""
    if source.encode_scale is not None:
        self.encode_scale = unit_of_lines(source, source.encode_scale, first, last)
    return self


cdef Tensor slice_offsets(ScaledTensor self, lines, along):
    """Zero points or biases of some blocks, which share memory unless they would start within a byte."""
    if self.offsets is None:
        return None
    try:
        return slice_part(self, self.offsets, lines, along)
    except BufferError:
        return slice_part(self, one_a_byte(self.offsets), lines, along)


cdef inline Tensor slice_part(ScaledTensor self, Tensor part, lines, along):
    return slice_tensor(part, (along, lines) if lies_across(self) else (lines, along))


cdef inline int64_t divide_up(int64_t count, int64_t size) noexcept:
    return (count + size - 1) // size
