# Cython's view of include/dlfp4/dlpack.h. The enums are read as plain integers: a hostile struct may hold any value.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


ctypedef void (*SetErrorFunction)(void *context, const char *kind, const char *message) noexcept


cdef extern from "dlfp4/dlpack.h":
    enum:
        DLPACK_MAJOR_VERSION
        DLPACK_MINOR_VERSION
        DLPACK_FLAG_BITMASK_READ_ONLY
        DLPACK_FLAG_BITMASK_IS_COPIED
        DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED

    enum:
        kDLCPU
        kDLCUDA
        kDLCUDAHost
        kDLOpenCL
        kDLVulkan
        kDLMetal
        kDLVPI
        kDLROCM
        kDLROCMHost
        kDLExtDev
        kDLCUDAManaged
        kDLOneAPI
        kDLWebGPU
        kDLHexagon
        kDLMAIA
        kDLTrn
        kDLTPU
        kDLTPUHost
        kDLAscend

    ctypedef int32_t DLDeviceType

    ctypedef struct DLPackVersion:
        uint32_t major
        uint32_t minor

    ctypedef struct DLDevice:
        DLDeviceType device_type
        int32_t device_id

    ctypedef struct DLDataType:
        uint8_t code
        uint8_t bits
        uint16_t lanes

    ctypedef struct DLTensor:
        void *data
        DLDevice device
        int32_t ndim
        DLDataType dtype
        int64_t *shape
        int64_t *strides
        uint64_t byte_offset

    ctypedef struct DLManagedTensor:
        DLTensor dl_tensor
        void *manager_ctx
        void (*deleter)(DLManagedTensor *) noexcept

    ctypedef struct DLManagedTensorVersioned:
        DLPackVersion version
        void *manager_ctx
        void (*deleter)(DLManagedTensorVersioned *) noexcept
        uint64_t flags
        DLTensor dl_tensor

    # Nonzero comes with a Python exception, or from a careless producer without one.
    ctypedef int (*ExportFunction "DLPackManagedTensorFromPyObjectNoSync")(
        void *, DLManagedTensorVersioned **) noexcept
    ctypedef int (*ImportFunction "DLPackManagedTensorToPyObjectNoSync")(
        DLManagedTensorVersioned *, void **) noexcept
    ctypedef int (*LendFunction "DLPackDLTensorFromPyObjectNoSync")(void *, DLTensor *) noexcept
    ctypedef int (*StreamFunction "DLPackCurrentWorkStream")(DLDeviceType, int32_t, void **) noexcept

    ctypedef struct DLPackExchangeAPIHeader:
        DLPackVersion version
        DLPackExchangeAPIHeader *prev_api

    ctypedef struct DLPackExchangeAPI:
        DLPackExchangeAPIHeader header
        int (*managed_tensor_allocator)(
            DLTensor *, DLManagedTensorVersioned **, void *, SetErrorFunction) noexcept
        ExportFunction managed_tensor_from_py_object_no_sync
        ImportFunction managed_tensor_to_py_object_no_sync
        LendFunction dltensor_from_py_object_no_sync
        StreamFunction current_work_stream
