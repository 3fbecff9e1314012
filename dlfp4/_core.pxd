# The one extension type, declared apart so that every room may use it whatever the order of the includes.
from libc.stdint cimport int64_t, uint8_t

from dlfp4._dlpack cimport DLTensor
from dlfp4._kernels cimport dlfp4_cuda_uses

cdef enum:
    INLINE_DIMS = 12   # shape and strides of up to six dimensions lie in the object itself


cdef enum Owner:
    OWNER_NONE         # nothing to release
    OWNER_OBJECT       # a Python object that holds the memory: another Tensor, a NumPy array
    OWNER_LOAN         # a producer's tensor, whose exchange table lends its memory
    OWNER_VERSIONED    # a DLManagedTensorVersioned
    OWNER_LEGACY       # a DLManagedTensor
    OWNER_HOST         # our own host memory
    OWNER_CUDA         # our own device memory


cdef class Tensor:
    cdef DLTensor dl             # logical elements, lanes = 1; shape and strides never NULL
    cdef int64_t size_           # product of the shape
    cdef int64_t stream          # CUDA stream on which the data becomes ready
    cdef void *owner             # what keeps the memory alive, a thing of kind owner_kind
    cdef void *retained              # beside the owner: the storage of a loan that was handed on, a stream, or NULL
    cdef dlfp4_cuda_uses *uses   # of our own device memory, on other streams; NULL where there are none
    cdef int64_t *pairs          # shape and strides in pairs, for the x2 dialect; NULL where it does not apply
    cdef uint8_t owner_kind
    cdef uint8_t row             # element type, an index into dtypes.def
    cdef uint8_t flags           # DLPack's READ_ONLY, IS_COPIED and IS_SUBBYTE_TYPE_PADDED
    cdef uint8_t x2_             # hand 4-bit data out in pairs, whoever asks
    cdef uint8_t origin          # whose current stream operations follow, a number of exchange.pxi; 0: nobody's
    cdef uint8_t is_part         # a view of a tensor with more elements: some may share its last byte
    cdef uint8_t unscaled        # FP8 of a checkpoint, and its scales were left: products warn
    cdef uint8_t immutable       # never to be written to, which its library's capsules cannot say
    cdef int64_t inline_dims[INLINE_DIMS]
