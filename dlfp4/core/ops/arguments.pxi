# Arguments that many functions take: their parsing, and the exceptions for invalid ones.

cdef object parse_integer(value, str name):
    """An integer argument as a Python integer."""
    try:
        return PyNumber_Index(value)
    except TypeError:
        raise TypeError(f"{name}={in_short(value)} is of type {type(value).__name__}; expected an integer") from None


def _parse_integer(value, name):
    """The same for dlfp4's Python files."""
    return parse_integer(value, name)


cdef list parse_shape(shape):
    """A shape argument as a list of Python integers; their values are not checked."""
    return [parse_integer(extent, "shape") for extent in (shape if isinstance(shape, (tuple, list)) else (shape,))]


cdef int check_copy(copy) except -1:
    if copy is not None and copy is not True and copy is not False:
        raise ValueError(f"copy={copy!r}: expected True, False or None")
    return 0


cdef bint parse_flag(value, str name) except -1:
    """A flag: True or False, of NumPy as well. Truthy values are refused: "no" would count as true."""
    if value is True or value is False:
        return value is True
    if isinstance(value, np.bool_):
        return bool(value)
    raise TypeError(f"{name}={in_short(value)} is of type {type(value).__name__}; expected True or False")


def _parse_flag(value, str name):
    """The same for dlfp4's Python files."""
    return parse_flag(value, name)
