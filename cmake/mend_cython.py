"""Mend what Cython 3.3 generates for list comprehensions: python mend_cython.py FILE.

Where the list cannot grow, the item is released by the function that appends it and once more by its caller, since
https://github.com/cython/cython/pull/7748. tests/exchange/test_exhausted.py counts references, and says when this is
needed no longer or no longer enough.
"""

import sys
from pathlib import Path

RELEASED_TWICE = """    int result = PyList_Append(list, x);
    Py_DECREF(x);
    return result;
"""
RELEASED_ONCE = """    int result = PyList_Append(list, x);
    if (likely(result == 0)) Py_DECREF(x);
    return result;
"""

path = Path(sys.argv[1])
path.write_text(path.read_text(encoding="utf-8").replace(RELEASED_TWICE, RELEASED_ONCE), encoding="utf-8")
