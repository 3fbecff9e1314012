# Block-scaled formats and scale layouts: the rows of src/rules/formats.def and layouts.h by name, and the buffers of
# which a tensor in a format consists.

cdef enum:
    NO_SCALE_LAYOUT = -1   # of "prepared", which is no row

cdef dict SCALE_LAYOUTS = {dlfp4_layouts[number].name.decode(): number for number in range(DLFP4_NUM_LAYOUTS)}


cdef object read_format(int number):
    cdef const dlfp4_format_row *row = &dlfp4_formats[number]
    kind = {DLFP4_TWO_LEVEL: "two_level", DLFP4_POWER: "power", DLFP4_LARGEST: "largest"}[row.kind]
    block = (row.lines, row.length or None) if row.lines else None
    return Format(row.name.decode(), DTYPES[row.element], DTYPES[row.scale], block, kind, row.repeats != 0, number)


cdef dict FORMATS = {each.name: each for each in [read_format(number) for number in range(DLFP4_NUM_FORMATS)]}
cdef object FORMAT_TABLE = FormatTable(FORMATS)


def formats():
    """Every block-scaled format by its name, in a read-only mapping that prints as a table.

    Examples
    --------
    >>> import dlfp4
    >>> print(dlfp4.formats())  # doctest: +ELLIPSIS, +NORMALIZE_WHITESPACE
    format            element        block    scale           global scale
    nvfp4             float4_e2m1fn  1x16     float8_e4m3fn   float32
    ...
    """
    return FORMAT_TABLE


def _find_format(format):
    """The row of a format or of its name; ValueError lists all names where there is none."""
    found = look_up(FORMATS, str(format))
    if found is None:
        raise ValueError(f"format={in_short(format)}: expected one of {', '.join(FORMATS)}"
                         f"{did_you_mean(str(format), FORMATS)}")
    if isinstance(format, Format) and format is not found:
        raise ValueError(f"format={format!r} is not one that kernels know: expected a row of dlfp4.formats(), or its "
                         f"name")
    return found


def _reduce_format(format):
    """For pickles and copies, which give the row of that name back."""
    return _find_format, (format.name,)


copyreg.pickle(Format, _reduce_format)


# ---- The buffers of a tensor

Buffer = collections.namedtuple("Buffer", "name shape dtype", module="dlfp4._core")
Buffer.__doc__ = """One piece of memory of a tensor: its name, its shape in logical elements, its element type."""


@functools.lru_cache(maxsize=1024)
def _buffers_of(shape, format, axis, scale_layout, pad, scale_dtype=None, global_scale_per="tensor",
                offsets=None):
    """The buffers of a tensor quantized along one axis. All code that allocates, checks or describes them asks here.

    The tensor counts as a matrix of M = prod(shape[:-1]) rows and K = shape[-1] columns. Along ``axis=-1`` a line is a
    row: the data is (M, K), the scales are (M, K / block). Along ``axis=-2`` a line is a column: elements below 8 bits
    are stored transposed, as (K, M) with scales (K, M / block); bytes stay as they are, (M, K), with scales
    (M / block, K). Where a block spans several lines, so does a scale, unless the format repeats its scales.

    Parameters
    ----------
    shape : tuple of int
        (..., K), of the tensor before it is quantized.
    format : Format or str
        A row of :func:`dlfp4.formats`; names are faster to look up.
    axis : {-1, -2}
        Along which the blocks run.
    scale_layout : str
        Layouts other than "linear" store a row of scales for each line, whatever the axis, padded to whole tiles.
    pad : bool
        The data of each line is completed to whole blocks with zeros. Lines are never added.
    scale_dtype : str, optional
        The type of the scales, where that is not the format's.
    global_scale_per : {"tensor", "row", "matrix"}
        Which part of the tensor a global scale is of: all of it, a line, or a matrix of the stack.
    offsets : str, optional
        Formats of integers: the type of zero points or biases, "" for neither. Default: as quantize makes them.

    Returns
    -------
    tuple of Buffer
        "data", "scales" and, of formats with two levels of scales, "global_scale"; of integers, "zero_points" or
        "biases" where there are some.

    Raises
    ------
    ValueError
        The blocks do not divide the shape; the format or dlfp4 has no such layout; a bad axis or shape.
    """
    format = _find_format(format)
    lines, length = as_lines(shape, axis)
    if format.block is not None and not pad and not divides(shape, format, axis):
        group, block = format.block
        blocks = f"the {group}x{block} blocks of {format.name}" if block else f"the whole bytes of {format.name}"
        raise ValueError(
            f"shape {listed(shape)} along axis {axis}, {lines} lines of {length} elements, does not divide into "
            f"{blocks}; pass pad=True to complete them with zeros, or pad the tensor")
    stored = length if format.block is None or may_be_short(format) else round_up(length, step_of(format))
    scales = scales_of_lines(format, lines, stored)
    transposed = axis == -2 and not is_subbyte(row_of_argument(format.element))   # against its lines
    if scale_layout != "linear":
        scales = tiled(scales, format, scale_layout, scale_type(format, scale_dtype))
    elif transposed:
        scales = scales[::-1]
    buffers = (Buffer("data", (stored, lines) if transposed else (lines, stored), format.element),
               Buffer("scales", scales, scale_type(format, scale_dtype)))
    if format.has_integers:
        offsets = own_offsets(format) if offsets is None else offsets
        name = "biases" if offsets in _BIASES else "zero_points"
        return (*buffers, Buffer(name, scales, DTYPES[row_of_argument(offsets)])) if offsets else buffers
    if not format.has_global_scale:
        return buffers
    return (*buffers, Buffer("global_scale", global_scales(shape, format, axis, global_scale_per), DTYPES[FLOAT32]))


_describe_buffers = _buffers_of.__wrapped__   # of extents that cannot be remembered: compilers have them by name


cdef tuple global_scales(tuple shape, format, axis, str per):
    """The shape of global scales: (), a number a line, or a number a matrix of a stack along axis -1."""
    if per == "tensor":
        return ()
    lines, _ = as_lines(shape, axis)
    if per == "row":
        return (lines,)
    if len(shape) < 3 or axis != -1:
        raise ValueError(f"a global scale for each matrix needs a stack (..., N, K) with blocks along axis -1; the "
                         f"tensor has shape {listed(shape)} and blocks along axis {axis}")
    if shape[len(shape) - 2] % format.block[0]:
        raise ValueError(f"a global scale for each matrix of shape {shape[len(shape) - 2:]}: blocks of {format.name} "
                         f"span {format.block[0]} rows, which must divide those of a matrix")
    return (count_of(shape[:len(shape) - 2]),)


def _divides(shape, format, axis):
    """Whether a format takes the shape without padding: its blocks divide it, or the last of a line may be short."""
    return divides(shape, format, axis)


cdef bint divides(tuple shape, format, axis) except -1:
    if format.block is None or may_be_short(format):
        return True
    lines, length = as_lines(shape, axis)
    return lines % format.block[0] == 0 and length % step_of(format) == 0


cdef object step_of(format):
    """How many elements of a line belong together: a block's, or those of a byte where a line has one scale."""
    return format.block[1] or 8 // dlfp4_dtypes[row_of_argument(format.element)].bits


cdef bint may_be_short(format) except -1:
    """Whether the last block of a line may be short, as of bytes with float32 scales."""
    return format.kind == "largest" and not format.has_integers


cdef tuple as_lines(tuple shape, axis):
    """How many lines the blocks run along, and how long these are."""
    if not shape or min([extent for extent in shape if isinstance(extent, int)], default=0) < 0:
        raise ValueError(f"shape {listed(shape)}: a quantized tensor has one dimension or more, of extent 0 or more")
    if len(shape) > MAX_NDIM:
        raise ValueError(f"shape {listed(shape)}: a tensor has {MAX_NDIM} dimensions at most")
    if axis not in (-1, -2):
        raise ValueError(f"axis={in_short(axis)}: expected -1, blocks along the last axis, or -2, along all others as "
                         f"one")
    if axis == -2 and len(shape) == 1:
        raise ValueError(f"axis=-2 of shape {shape}: blocks along columns need two dimensions; reshape the tensor")
    count_of([extent for extent in shape if isinstance(extent, int) and extent])   # without empty dimensions, too
    rows, columns = count_of(shape[:len(shape) - 1]), shape[len(shape) - 1]
    return (rows, columns) if axis == -1 else (columns, rows)


cdef tuple scales_of_lines(format, lines, length):
    """The scales' shape: a row for each line, or for each group of lines that share them."""
    if format.block is None:
        return ()
    group, block = format.block
    rows = lines if format.repeats_scales else -(-lines // group)
    return rows, min(length, 1) if block is None else -(-length // block)


cdef int check_name_of_layout(layout) except -1:
    if not is_one_of(layout, SCALE_LAYOUTS):
        raise ValueError(f"scale_layout={in_short(layout)}: expected one of {', '.join(SCALE_LAYOUTS)}"
                         f"{did_you_mean(layout, SCALE_LAYOUTS)}")
    return 0


cdef inline str parse_layout(layout):
    """The name of a layout of scales that a caller gives; where it is looked up, unknown ones are refused."""
    if not isinstance(layout, str):
        raise TypeError(f"scale_layout={in_short(layout)} is of type {type(layout).__name__}; expected a string")
    return str(layout)


cdef tuple tiled(tuple scales, format, layout, dtype):
    """The scales' shape under a layout of tiles."""
    cdef const dlfp4_layout_row *tile
    check_name_of_layout(layout)
    tile = &dlfp4_layouts[<int> SCALE_LAYOUTS[layout]]
    check_layout(format, layout, tile, dtype)
    rows, columns = [round_up(extent, step) for extent, step in zip(scales, (tile.rows, tile.columns))]
    return (columns // tile.run, rows * tile.run) if tile.by_rows else (rows, columns)


cdef int check_layout(format, str layout, const dlfp4_layout_row *tile, dtype) except -1:
    """ValueError where a layout is not for a format's scales, of that type."""
    if format.has_integers and layout != "linear":
        raise ValueError(f"scale_layout={layout!r}: no layout is for the float32 scales of integers; use "
                         f"scale_layout='linear'")
    if tile.lines and format.block != (tile.lines, 128):
        has = "one scale" if format.block is None else "one scale a line" if format.scales_lines else \
            "x".join(map(str, format.block))
        raise ValueError(f"scale_layout={layout!r} is for float32 scales of {tile.lines}x128 blocks; {format.name} has "
                         f"{has}; use scale_layout='linear'")
    if dtype.itemsize != tile.bytes:
        raise ValueError(f"scale_layout={layout!r} holds scales of {'one byte' if tile.bytes == 1 else 'four bytes'}, "
                         f"those of {format.name} are {dtype}; use scale_layout='linear'")
    return 0


cdef object round_up(count, multiple):
    return -(-count // multiple) * multiple
