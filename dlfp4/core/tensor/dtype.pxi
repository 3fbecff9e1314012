# Element types: inside the core a type is the number of its row in src/rules/dtypes.def; callers see the numpy.dtype of
# NumPy or ml_dtypes. This file finds the row for every form in which a type arrives.

cdef object find_dtype(str name):
    """The type of that name in ml_dtypes or NumPy; None where this version of ml_dtypes does not have it yet."""
    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError:
        return None


# numpy.dtype by row, in the order of dtypes.def.
cdef list DTYPES = [find_dtype(dlfp4_dtypes[row].name.decode()) for row in range(DLFP4_NUM_DTYPES)]
cdef str KNOWN_NAMES = ", ".join([dtype.name for dtype in DTYPES if dtype is not None])

cdef enum:
    NUM_CODES = 32   # as src/rules/operand.cpp has it
    NUM_NUMPY_TYPES = 512
    NO_ROW = -1

cdef int8_t ROW_OF_DLPACK[NUM_CODES][256]   # by DLPack code and bits
cdef int8_t ROW_OF_NUMPY[NUM_NUMPY_TYPES]   # by NumPy type number
cdef dict ROW_OF_ARGUMENT = {}              # by dtype argument, as met


cdef int fill_row_tables() except -1:
    cdef int row
    memset(ROW_OF_DLPACK, NO_ROW, sizeof(ROW_OF_DLPACK))
    memset(ROW_OF_NUMPY, NO_ROW, sizeof(ROW_OF_NUMPY))
    for row in range(DLFP4_NUM_DTYPES):
        if DTYPES[row] is None:
            continue
        ROW_OF_DLPACK[dlfp4_dtypes[row].code][dlfp4_dtypes[row].bits] = row
        # A number beyond the table (after hundreds of other user types) is found by name, which is slower.
        if DTYPES[row].num < NUM_NUMPY_TYPES:
            ROW_OF_NUMPY[DTYPES[row].num] = row
    for character in "bBhHiIlLqQ":  # C integer types that share a width have numbers of their own
        alias = np.dtype(character)
        ROW_OF_NUMPY[alias.num] = ROW_OF_NUMPY[np.dtype(alias.name).num]
    return 0


fill_row_tables()


cdef inline int item_bits(int row) noexcept nogil:
    return dlfp4_dtypes[row].bits


cdef inline bint is_subbyte(int row) noexcept nogil:
    return dlfp4_dtypes[row].bits < 8


cdef inline bint is_float(int row) noexcept nogil:
    return dlfp4_dtypes[row].specials != DLFP4_NONE


cdef inline int row_of_array(cnp.ndarray array) except NO_ROW:
    """The row of an array's elements; BufferError where DLPack has no such type, or not in this byte order."""
    cdef int number = cnp.PyArray_TYPE(array), row = NO_ROW
    if 0 <= number < NUM_NUMPY_TYPES and cnp.PyArray_ISNOTSWAPPED(array):
        row = ROW_OF_NUMPY[number]
    return row if row != NO_ROW else row_of_numpy(array.dtype)


cdef int row_of_numpy(dtype) except NO_ROW:
    cdef int row = row_of_name(dtype.name)
    if row == NO_ROW:
        raise BufferError(f"DLPack has no element type for NumPy's {dtype!r}; "
                          f"dlfp4 carries {KNOWN_NAMES}")
    if not dtype.isnative:
        raise BufferError(f"NumPy's {dtype!r} is not in this machine's byte order, which DLPack requires; "
                          f"call .astype(x.dtype.newbyteorder('=')) first")
    return row


cdef int row_of_name(str name):
    for row in range(DLFP4_NUM_DTYPES):
        if DTYPES[row] is not None and DTYPES[row].name == name:
            return row
    return NO_ROW


# Short names that mean one type. "e4m3" and "fp8" mean several: see SEVERAL.
cdef dict ALIASES = {
    "fp4": "float4_e2m1fn", "e2m1": "float4_e2m1fn", "e2m1fn": "float4_e2m1fn", "float4_e2m1fn_x2": "float4_e2m1fn",
    "e2m3": "float6_e2m3fn", "e2m3fn": "float6_e2m3fn", "e3m2": "float6_e3m2fn", "e3m2fn": "float6_e3m2fn",
    "e4m3fn": "float8_e4m3fn", "e5m2": "float8_e5m2", "e8m0": "float8_e8m0fnu", "ue8m0": "float8_e8m0fnu",
    "bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "fp64": "float64",
}
cdef dict SEVERAL = {
    "e4m3": "float8_e4m3fn (no infinities, up to 448: FP8 in most frameworks), or float8_e4m3 (IEEE's, up to 240)",
    "fp8": "float8_e4m3fn or float8_e5m2", "float8": "float8_e4m3fn or float8_e5m2",
    "fp6": "float6_e2m3fn or float6_e3m2fn", "float6": "float6_e2m3fn or float6_e3m2fn",
}


cdef str remedy_of_name(dtype):
    """What the caller may have meant by a string that names no element type."""
    if not isinstance(dtype, str):
        return ""
    if dtype in SEVERAL:
        return f"; did you mean {SEVERAL[dtype]}?"
    format = look_up(FORMATS, dtype)
    if format is not None:
        return (f"; it is a block-scaled format, whose elements are {format.element}: quantize(x, {dtype!r}) makes a "
                f"tensor of it")
    return did_you_mean(dtype.rpartition(".")[2], [*KNOWN_NAMES.split(", "), *ALIASES])


cdef str name_of_argument(dtype):
    """The element type's name in whatever way a caller may give one, "" of what names none: string, NumPy, ml_dtypes,
    JAX, tvm-ffi, or a type of a framework whose file knows its name."""
    if isinstance(dtype, str):
        return ALIASES.get(dtype, dtype)
    if isinstance(dtype, np.dtype):
        return dtype.name if dtype.isnative else dtype.str
    if dtype is None:   # numpy.dtype(None) is float64
        return "None"
    if isinstance(getattr(dtype, "dtype", None), np.dtype):  # jax.numpy.float32 and its like
        return dtype.dtype.name
    if type_has(Py_TYPE(dtype), "__dlpack_data_type__"):   # of tvm-ffi and PaddlePaddle (array-api #972)
        return name_of_dlpack(dtype.__dlpack_data_type__())
    try:
        return np.dtype(dtype).name
    except (TypeError, ValueError):   # the latter for what has a dtype, such as a tensor
        framework = frameworks.of_type(type(dtype))
    return "" if framework is None or framework.element_name is None else framework.element_name(dtype)


cdef str name_of_dlpack(wire):
    """The name of (code, bits, lanes); "" where that is no type."""
    cdef DLDataType dtype
    code, bits, lanes = wire
    if not (0 <= code < NUM_CODES and 0 < bits < 256 and 0 < lanes < 1 << 16):
        return ""
    dtype.code, dtype.bits, dtype.lanes = code, bits, lanes
    return dlfp4_dtypes[row_of_dlpack(dtype)].name.decode() if is_carried(dtype) else ""


cdef int row_of_argument(dtype) except NO_ROW:
    """The row of a caller's dtype argument; TypeError where it names no type that dlfp4 carries."""
    cdef int row = NO_ROW
    # A numpy.dtype is found by number: those of ml_dtypes all hash alike, which would make the dictionary slow.
    if isinstance(dtype, cnp.dtype) and 0 <= (<cnp.dtype> dtype).type_num < NUM_NUMPY_TYPES \
            and cnp.PyArray_IsNativeByteOrder((<cnp.dtype> dtype).byteorder):
        row = ROW_OF_NUMPY[(<cnp.dtype> dtype).type_num]
    if row != NO_ROW:
        return row
    try:
        cached = look_up(ROW_OF_ARGUMENT, dtype)
    except TypeError:   # what no dictionary can hold
        raise TypeError(f"dtype {dtype!r} is of type {type(dtype).__name__}; expected a name, a numpy.dtype, or "
                        f"a framework's element type") from None
    if cached is not None:
        return cached
    row = row_of_name(name_of_argument(dtype))
    if row == NO_ROW:
        raise TypeError(f"dtype {dtype!r} is not one that dlfp4 carries; expected one of {KNOWN_NAMES}"
                        f"{remedy_of_name(dtype)}")
    if len(ROW_OF_ARGUMENT) < 256:
        ROW_OF_ARGUMENT[dtype] = row
    return row


def _parse_dtype(dtype):
    """A dtype argument as the numpy.dtype."""
    return DTYPES[row_of_argument(dtype)]


def _wire_of(name):
    """DLPack's code and bits of an element type."""
    cdef int row = row_of_argument(name)
    return dlfp4_dtypes[row].code, dlfp4_dtypes[row].bits


cdef int UINT8 = row_of_argument("uint8"), FLOAT16 = row_of_argument("float16")
cdef int BFLOAT16 = row_of_argument("bfloat16")
cdef int FLOAT32 = row_of_argument("float32"), FLOAT64 = row_of_argument("float64")


cdef inline bint is_carried(DLDataType dtype) noexcept nogil:
    """lanes = 2 of a 4-bit type counts it in pairs, as PyTorch counts FP4; other vectors have no NumPy type."""
    return (dtype.code < NUM_CODES and ROW_OF_DLPACK[dtype.code][dtype.bits] != NO_ROW
            and (dtype.lanes == 1 or (dtype.lanes == 2 and dtype.bits == 4)))


cdef int row_of_dlpack(DLDataType dtype) except NO_ROW:
    """The row of a type on the wire, its lanes aside; BufferError naming code, bits and lanes."""
    if not is_carried(dtype):
        raise BufferError(
            f"DLPack dtype (code={dtype.code}, bits={dtype.bits}, lanes={dtype.lanes}) is not one that dlfp4 carries: "
            f"it takes the types of numpy.dtype and ml_dtypes with lanes=1, and 4-bit types also with lanes=2; "
            f"export the tensor under one of those, for example as uint8 bytes, and use .view(dtype)")
    return ROW_OF_DLPACK[dtype.code][dtype.bits]
