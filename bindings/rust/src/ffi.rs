//! The C API as `dlfp4/dlfp4.h` declares it. `tests/layouts.rs` checks the structs.

#![allow(missing_docs)]

use std::os::raw::{c_char, c_int, c_void};

pub const OK: c_int = 0;
pub const PLAIN: i32 = -1;
pub const CPU: i32 = 1;
pub const UINT: u8 = 1;
pub const TWO_LEVELS: c_int = 0;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DLDevice {
    pub device_type: i32,
    pub device_id: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DLDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    pub data: *mut c_void,
    pub device: DLDevice,
    pub ndim: i32,
    pub dtype: DLDataType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FormatInfo {
    pub name: *const c_char,
    pub element: DLDataType,
    pub scale: DLDataType,
    pub lines: i32,
    pub length: i32,
    pub kind: c_int,
    pub repeats_scales: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    pub data: [i64; 2],
    pub scales: [i64; 2],
    pub scale_ndim: i32,
    pub data_bytes: i64,
    pub scale_bytes: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScaledTensor {
    pub format: i32,
    pub axis: i32,
    pub layout: i32,
    pub rotation: u32,
    pub data: *const DLTensor,
    pub scales: *const DLTensor,
    pub global_scale: *const DLTensor,
    pub zero_points: *const DLTensor,
    pub biases: *const DLTensor,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ConvertOptions {
    pub rounding: c_int,
    pub saturate: c_int,
    pub seed: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    pub scale_rule: c_int,
    pub scale_order: c_int,
    pub four_over_six: c_int,
    pub largest_scale: f32,
    pub rounding: c_int,
    pub seed: u64,
    pub first: u64,
    pub eps: f32,
    pub divides: u8,
    pub pow2: u8,
    pub zero_scale: u8,
    pub least_scale: u8,
    pub drops_negative_zero: u8,
    pub rounds_to_plus_zero: u8,
    pub scale_code: u8,
    pub scale_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    pub ends: *const DLTensor,
    pub indices: *const DLTensor,
    pub weights: *const DLTensor,
    pub gathers: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Prepared {
    pub memory: *const c_void,
    pub factors: *const f32,
    pub device: i32,
    pub format: i32,
    pub largest: i32,
    pub exact_in_half: i32,
    pub rows: i64,
    pub columns: i64,
    pub matrices: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MatmulOptions {
    pub activation: c_int,
    pub alpha: f32,
}

extern "C" {
    pub fn dlfp4_version() -> *const c_char;
    pub fn dlfp4_status_string(status: c_int) -> *const c_char;
    pub fn dlfp4_find_format(name: *const c_char) -> c_int;
    pub fn dlfp4_describe_format(format: c_int, info: *mut FormatInfo) -> c_int;
    pub fn dlfp4_default_recipe(format: c_int, recipe: *mut Recipe) -> c_int;
    pub fn dlfp4_find_layout(name: *const c_char) -> c_int;
    pub fn dlfp4_size_buffers(
        format: c_int,
        axis: c_int,
        layout: c_int,
        rows: i64,
        columns: i64,
        sizes: *mut Sizes,
    ) -> c_int;
    pub fn dlfp4_cast(
        x: *const DLTensor,
        out: *const DLTensor,
        options: *const ConvertOptions,
        flags: u32,
        stream: *mut c_void,
    ) -> c_int;
    pub fn dlfp4_quantize(
        x: *const DLTensor,
        recipe: *const Recipe,
        global_scale: f32,
        q: *const ScaledTensor,
        other: *const ScaledTensor,
        stream: *mut c_void,
    ) -> c_int;
    pub fn dlfp4_dequantize(q: *const ScaledTensor, out: *const DLTensor, stream: *mut c_void) -> c_int;
    pub fn dlfp4_rotation(seed: u64) -> u32;
    pub fn dlfp4_convert_scales(
        x: *const DLTensor,
        x_layout: c_int,
        out: *const DLTensor,
        out_layout: c_int,
        rows: i64,
        columns: i64,
        fill: u8,
        stream: *mut c_void,
    ) -> c_int;
    pub fn dlfp4_vecdot_workspace(lines: i64, length: i64) -> i64;
    pub fn dlfp4_vecdot(
        a: *const ScaledTensor,
        b: *const ScaledTensor,
        out: *const DLTensor,
        workspace: *mut c_void,
        stream: *mut c_void,
    ) -> c_int;
    pub fn dlfp4_matmul_workspace(
        a: *const ScaledTensor,
        b: *const ScaledTensor,
        out: *const DLTensor,
        options: *const MatmulOptions,
    ) -> i64;
    pub fn dlfp4_matmul(
        a: *const ScaledTensor,
        b: *const ScaledTensor,
        out: *const DLTensor,
        options: *const MatmulOptions,
        workspace: *mut c_void,
        stream: *mut c_void,
    ) -> c_int;
    pub fn dlfp4_grouped_matmul_workspace(
        x: *const ScaledTensor,
        w: *const ScaledTensor,
        routing: *const Routing,
        out: *const DLTensor,
        options: *const MatmulOptions,
    ) -> i64;
    pub fn dlfp4_grouped_matmul(
        x: *const ScaledTensor,
        w: *const ScaledTensor,
        routing: *const Routing,
        out: *const DLTensor,
        options: *const MatmulOptions,
        workspace: *mut c_void,
        stream: *mut c_void,
    ) -> c_int;
    pub fn dlfp4_prepared_bytes(format: c_int, rows: i64, columns: i64) -> i64;
    pub fn dlfp4_prepare(
        w: *const ScaledTensor,
        memory: *mut c_void,
        prepared: *mut Prepared,
        stream: *mut c_void,
    ) -> c_int;
    pub fn dlfp4_matmul_prepared(
        x: *const DLTensor,
        w: *const Prepared,
        out: *const DLTensor,
        alpha: f32,
        stream: *mut c_void,
    ) -> c_int;
    pub fn dlfp4_grouped_matmul_prepared_workspace(
        x: *const DLTensor,
        w: *const Prepared,
        routing: *const Routing,
        out: *const DLTensor,
    ) -> i64;
    pub fn dlfp4_grouped_matmul_prepared(
        x: *const DLTensor,
        w: *const Prepared,
        routing: *const Routing,
        out: *const DLTensor,
        alpha: f32,
        workspace: *mut c_void,
        stream: *mut c_void,
    ) -> c_int;
    pub fn dlfp4_isa() -> *const c_char;
    pub fn dlfp4_set_isa(name: *const c_char) -> c_int;
    pub fn dlfp4_isa_numbered(number: c_int) -> *const c_char;
    pub fn dlfp4_set_num_threads(threads: c_int);
    pub fn dlfp4_get_num_threads() -> c_int;
    pub fn dlfp4_load_cuda(device: c_int) -> c_int;
    pub fn dlfp4_register_tvm_ffi() -> c_int;
}
