# cython: language_level=3, binding=False, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, embedsignature=True, embedsignature.format=clinic, freethreading_compatible=True
"""The core of dlfp4: one extension, whose parts follow the data from the producer to the consumer."""
import collections
import copyreg
import functools
import importlib
import os
import pickle
import reprlib
import sys
import threading
import warnings
import weakref

import ml_dtypes
import numpy as np

from dlfp4 import frameworks, show
from dlfp4.extents import bounded_product, count_elements as count_of, listed
from dlfp4.formats import (
    BIASES as _BIASES, FLOATS as _FLOATS, ROTATED_LENGTH as _ROTATED_LENGTH, ZERO_POINTS as _ZERO_POINTS, Format,
    FormatTable, code_of_scale, find_recipe, granularity_of, largest_scale_of, own_offsets, pow2_of, scale_type,
)
from dlfp4.parsing import shown as in_short   # of an argument: a file may have a description of any length
from dlfp4.suggest import did_you_mean, is_one_of

cimport cython
cimport numpy as cnp
from cpython.object cimport PyTypeObject
from cpython.pycapsule cimport (
    PyCapsule_CheckExact, PyCapsule_Destructor, PyCapsule_GetName, PyCapsule_GetPointer, PyCapsule_IsValid,
    PyCapsule_New, PyCapsule_SetName,
)
from cpython.exc cimport PyErr_Fetch, PyErr_Restore
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.number cimport PyIndex_Check, PyNumber_AsSsize_t, PyNumber_Index
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, PyObject
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.math cimport INFINITY
from libc.stdint cimport INT64_MAX, INT64_MIN, int8_t, int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy, memset, strncmp

from dlfp4._dlpack cimport *
from dlfp4._kernels cimport *

cdef extern from *:
    """
    #include <Python.h>
    #include <numpy/arrayobject.h>

    /* Whether a type or one of its bases has an attribute; a miss costs no AttributeError. */
    static inline int type_has(PyTypeObject *type, PyObject *name) { return _PyType_Lookup(type, name) != NULL; }

    static inline int raise_pending(void) { return PyErr_Occurred() ? -1 : 0; }
    static inline int load_acquire(const int *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline void store_release(int *p, int value) { __atomic_store_n(p, value, __ATOMIC_RELEASE); }
    /* Threads that quantize into one result write the same. */
    static inline void store_float(float *p, float value) { __atomic_store(p, &value, __ATOMIC_RELAXED); }
    /* A new reference to what a dictionary has under a key, or to None. Cython's dict.get borrows the value for a
     * moment, in which another thread of a free-threaded Python may take the last reference away. */
    static inline PyObject *look_up(PyObject *dict, PyObject *key) {
    #if PY_VERSION_HEX >= 0x030D0000
        PyObject *value;
        if (PyDict_GetItemRef(dict, key, &value) < 0) return NULL;
    #else
        PyObject *value = PyDict_GetItemWithError(dict, key);
        if (value == NULL && PyErr_Occurred()) return NULL;
        Py_XINCREF(value);
    #endif
        return value != NULL ? value : Py_NewRef(Py_None);
    }

    /* Ends an export of a tensor, whose memory is a block; and what owns one, without memory for which it ends. */
    static inline void free_export(void *tensor, void *block) {
        Py_DECREF((PyObject *)tensor);
        PyMem_RawFree(block);
    }
    static inline PyObject *own_in_capsule(void *tensor, void *block, const char *name, PyCapsule_Destructor end) {
        PyObject *capsule = PyCapsule_New(block, name, end);
        if (capsule == NULL) free_export(tensor, block);
        return capsule;
    }

    static inline int ctz(int64_t value) { return __builtin_ctzll((unsigned long long)value); }

    /* descriptor.__get__(x), or descriptor(x) for a method, straight through its C function: `x` is of the type that
     * the descriptor belongs to, so that no bound method and no argument tuple is needed. */
    static inline PyObject *read_descriptor(PyObject *descriptor, PyObject *x) {
        if (Py_TYPE(descriptor) == &PyGetSetDescr_Type) {
            PyGetSetDef *attribute = ((PyGetSetDescrObject *)descriptor)->d_getset;
            return attribute->get(x, attribute->closure);
        }
        if (Py_TYPE(descriptor) == &PyMethodDescr_Type) {
            PyMethodDef *method = ((PyMethodDescrObject *)descriptor)->d_method;
            if (method->ml_flags == METH_NOARGS) return method->ml_meth(x, NULL);
        }
        return PyObject_CallOneArg(descriptor, x);
    }

    /* An array over memory that it does not own. An empty tensor may have no address, which NumPy would take as a
     * wish for memory of its own. */
    static PyObject *new_array(PyObject *dtype, int ndim, const int64_t *shape, const npy_intp *strides, void *data,
                               int flags) {
        static char nothing[1];
        Py_INCREF(dtype); /* PyArray_NewFromDescr takes this reference */
        return PyArray_NewFromDescr(&PyArray_Type, (PyArray_Descr *)dtype, ndim, (const npy_intp *)shape, strides,
                                    data != NULL ? data : nothing, flags, NULL);
    }

    /* What an array's memory belongs to, if that is another object. */
    static inline PyObject *array_base(PyArrayObject *array) {
        PyObject *base = PyArray_BASE(array);
        return Py_NewRef(base != NULL ? base : Py_None);
    }
    """
    bint type_has(PyTypeObject *, object) noexcept
    int raise_pending() except -1
    int load_acquire(const int *) noexcept nogil
    void store_release(int *, int) noexcept nogil
    void store_float(float *, float) noexcept nogil
    int ctz(int64_t) noexcept nogil
    object look_up(dict, object)
    void free_export(void *, void *)
    object own_in_capsule(void *, void *, const char *, PyCapsule_Destructor)
    object read_descriptor(PyObject *, object)

    PyTypeObject *Py_TYPE(object) noexcept
    bint PyType_SUPPORTS_WEAKREFS(PyTypeObject *) noexcept
    int PySlice_Unpack(object, Py_ssize_t *, Py_ssize_t *, Py_ssize_t *) except -1
    PyObject *PyEval_GetGlobals()
    Py_ssize_t PySlice_AdjustIndices(Py_ssize_t, Py_ssize_t *, Py_ssize_t *, Py_ssize_t) noexcept
    object array_base(cnp.ndarray)
    object new_array(object, int, const int64_t *, const cnp.npy_intp *, void *, int)

__version__ = dlfp4_version().decode()

cnp.import_array()

cdef DLDevice CPU
CPU.device_type = kDLCPU
CPU.device_id = 0

include "core/ops/arguments.pxi"
include "core/machine/machine.pxi"
include "core/tensor/strides.pxi"
include "core/tensor/dtype.pxi"
include "core/tensor/device.pxi"
include "core/tensor/formats.pxi"
include "core/exchange/describe.pxi"
include "core/exchange/natives.pxi"
include "core/machine/origins.pxi"
include "core/exchange/exchange.pxi"
include "core/exchange/importer.pxi"
include "core/exchange/memory.pxi"
include "core/machine/cuda.pxi"
include "core/machine/places.pxi"
include "core/tensor/views.pxi"
include "core/tensor/tensor.pxi"
include "core/ops/ops.pxi"
include "core/ops/hadamard.pxi"
include "core/tensor/scaled.pxi"
include "core/tensor/parts.pxi"
include "core/tensor/scale_layouts.pxi"
include "core/tensor/outlines.pxi"
include "core/tensor/slices.pxi"
include "core/ops/recipes.pxi"
include "core/ops/descriptions.pxi"
include "core/ops/scaling.pxi"
include "core/ops/dequantizing.pxi"
include "core/ops/weights.pxi"
include "core/ops/changes.pxi"
include "core/ops/outputs.pxi"
include "core/ops/prepared.pxi"
include "core/ops/byte_products.pxi"
include "core/ops/products.pxi"
include "core/ops/grouped.pxi"
include "core/ops/repeated.pxi"
include "core/ops/plans.pxi"
include "core/ops/boxed.pxi"
include "core/machine/xla.pxi"
include "core/exchange/exporter.pxi"
include "core/tensor/pickling.pxi"
