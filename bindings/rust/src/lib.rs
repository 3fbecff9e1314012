//! FP4, FP6 and FP8 tensors by libdlfp4: casts, block scaling and products on the host,
//! with safe types. [`ffi`] has the C API itself, for other devices and strides.
//!
//! ```
//! use dlfp4::{dequantize, quantize, Format, Matrix, MatrixMut, Options};
//!
//! let x: Vec<f32> = (0..64).map(|i| i as f32 / 16.0 - 2.0).collect();
//! let q = quantize(Matrix::new(&x, 2, 32)?, Format::find("mxfp4")?, Options::default())?;
//! let mut back = vec![0.0f32; 64];
//! dequantize(&q, MatrixMut::new(&mut back, 2, 32)?)?;
//! assert_eq!(q.bytes(), 34);
//! assert!(x.iter().zip(&back).all(|(a, b)| (a - b).abs() <= 0.5));
//! # Ok::<(), dlfp4::Error>(())
//! ```
#![warn(missing_docs)]

pub mod ffi;

use std::ffi::{CStr, CString};
use std::fmt;
use std::os::raw::{c_char, c_int, c_void};
use std::ptr;

/// What an operation refuses, in the words of the C API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    status: c_int,
}

impl Error {
    const SHAPE: Error = Error { status: 2 };
    const OPTION: Error = Error { status: 3 };

    /// The C API's `dlfp4_status`.
    pub fn status(self) -> i32 {
        self.status
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(text(unsafe { ffi::dlfp4_status_string(self.status) }))
    }
}

impl std::error::Error for Error {}

/// The result of an operation.
pub type Result<T> = std::result::Result<T, Error>;

fn check(status: c_int) -> Result<()> {
    if status == ffi::OK {
        Ok(())
    } else {
        Err(Error { status })
    }
}

/// A string that the library keeps; NULL is an empty one.
fn text(string: *const c_char) -> &'static str {
    if string.is_null() {
        return "";
    }
    unsafe { CStr::from_ptr(string) }.to_str().unwrap_or("")
}

/// The version of the library.
pub fn version() -> &'static str {
    text(unsafe { ffi::dlfp4_version() })
}

/// The instruction set in use; empty where the variable `DLFP4_ISA` names one that is not there.
pub fn isa() -> &'static str {
    text(unsafe { ffi::dlfp4_isa() })
}

/// Sets the threads for large calls, of the whole process; 0 restores the default. Results do not depend on them.
pub fn set_num_threads(threads: usize) {
    unsafe { ffi::dlfp4_set_num_threads(c_int::try_from(threads).unwrap_or(c_int::MAX)) }
}

/// The threads for large calls.
pub fn num_threads() -> usize {
    usize::try_from(unsafe { ffi::dlfp4_get_num_threads() }).unwrap_or(1)
}

/// bfloat16 by its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

/// float16 by its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

mod sealed {
    /// Only types whose memory is what they say.
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for super::Bf16 {}
    impl Sealed for super::F16 {}
    impl<T: super::Element> Sealed for super::Matrix<'_, T> {}
    impl Sealed for super::Quantized {}
}

/// An element type of matrices: `f32`, [`Bf16`], [`F16`].
pub trait Element: sealed::Sealed + Copy {
    /// DLPack's name of it.
    const DTYPE: ffi::DLDataType;
}

impl Element for f32 {
    const DTYPE: ffi::DLDataType = ffi::DLDataType { code: 2, bits: 32, lanes: 1 };
}
impl Element for Bf16 {
    const DTYPE: ffi::DLDataType = ffi::DLDataType { code: 4, bits: 16, lanes: 1 };
}
impl Element for F16 {
    const DTYPE: ffi::DLDataType = ffi::DLDataType { code: 2, bits: 16, lanes: 1 };
}

fn shape_of(length: usize, rows: usize, columns: usize) -> Result<[i64; 2]> {
    if rows.checked_mul(columns) != Some(length) {
        return Err(Error::SHAPE);
    }
    let extent = |count: usize| i64::try_from(count).map_err(|_| Error::SHAPE);
    Ok([extent(rows)?, extent(columns)?])
}

/// A row-major matrix that is read.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a, T: Element> {
    data: &'a [T],
    shape: [i64; 2],
}

impl<'a, T: Element> Matrix<'a, T> {
    /// An error where the elements are not `rows * columns`.
    pub fn new(data: &'a [T], rows: usize, columns: usize) -> Result<Self> {
        Ok(Matrix { data, shape: shape_of(data.len(), rows, columns)? })
    }
}

/// A row-major matrix that is written.
#[derive(Debug)]
pub struct MatrixMut<'a, T: Element> {
    data: &'a mut [T],
    shape: [i64; 2],
}

impl<'a, T: Element> MatrixMut<'a, T> {
    /// An error where the elements are not `rows * columns`.
    pub fn new(data: &'a mut [T], rows: usize, columns: usize) -> Result<Self> {
        let shape = shape_of(data.len(), rows, columns)?;
        Ok(MatrixMut { data, shape })
    }

    fn dl(&mut self) -> ffi::DLTensor {
        describe(self.data.as_mut_ptr().cast(), T::DTYPE, &self.shape)
    }
}

/// Compact memory of the host. The library writes neither to shapes nor to what it only reads.
fn describe(data: *mut c_void, dtype: ffi::DLDataType, shape: &[i64]) -> ffi::DLTensor {
    ffi::DLTensor {
        data,
        device: ffi::DLDevice { device_type: ffi::CPU, device_id: 0 },
        ndim: shape.len() as i32, // 0 to 2
        dtype,
        shape: shape.as_ptr() as *mut i64,
        strides: ptr::null_mut(),
        byte_offset: 0,
    }
}

/// A block-scaled format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    number: c_int,
}

impl Format {
    /// The format of a name, such as "nvfp4" or "mxfp8_e4m3"; an error where there is none.
    pub fn find(name: &str) -> Result<Format> {
        let name = CString::new(name).map_err(|_| Error::OPTION)?;
        let number = unsafe { ffi::dlfp4_find_format(name.as_ptr()) };
        if number < 0 {
            return Err(Error::OPTION);
        }
        Ok(Format { number })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        text(self.info().name)
    }

    fn info(self) -> ffi::FormatInfo {
        let mut info = std::mem::MaybeUninit::uninit();
        let status = unsafe { ffi::dlfp4_describe_format(self.number, info.as_mut_ptr()) };
        assert_eq!(status, ffi::OK, "a Format is always one of the library's");
        unsafe { info.assume_init() }
    }
}

/// Along which axis of a matrix blocks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Along rows.
    Rows,
    /// Along columns.
    Columns,
}

/// How [`quantize`] does it, beside the format.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Along which axis blocks run.
    pub axis: Axis,
    /// The decode scale of the whole tensor, of formats that have one; `None`: it is found.
    pub global_scale: Option<f32>,
    /// The seed of a random Hadamard transform of sixteen neighbours.
    pub hadamard: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Options { axis: Axis::Rows, global_scale: None, hadamard: None }
    }
}

/// A quantized matrix, which owns its parts.
#[derive(Clone, Debug)]
pub struct Quantized {
    format: Format,
    axis: Axis,
    rotation: u32,
    sizes: ffi::Sizes,
    data: Vec<u8>,
    scales: Vec<f32>,       // for its alignment: these may be bytes
    global_scale: Vec<f32>, // one, or none; not in the struct itself, which is borrowed while C writes
    zero_points: Vec<u8>,
}

fn zeros<T: Copy + Default>(count: i64) -> Vec<T> {
    vec![T::default(); usize::try_from(count).unwrap_or(0)]
}

impl Quantized {
    fn allocate(format: Format, shape: [i64; 2], options: &Options) -> Result<Self> {
        let axis = if options.axis == Axis::Rows { -1 } else { -2 };
        let mut sizes = ffi::Sizes::default();
        check(unsafe { ffi::dlfp4_size_buffers(format.number, axis, 0, shape[0], shape[1], &mut sizes) })?;
        let (info, scales) = (format.info(), sizes.scales[0] * sizes.scales[1]);
        Ok(Quantized {
            format,
            axis: options.axis,
            rotation: options.hadamard.map_or(0, |seed| unsafe { ffi::dlfp4_rotation(seed) }),
            sizes,
            data: zeros(sizes.data_bytes),
            scales: zeros((sizes.scale_bytes + 3) / 4),
            global_scale: zeros(i64::from(info.kind == ffi::TWO_LEVELS)),
            zero_points: zeros(if info.element.code == ffi::UINT { scales } else { 0 }),
        })
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The bytes of all parts.
    pub fn bytes(&self) -> usize {
        self.data.len() + self.scales().len() + 4 * self.global_scale.len() + self.zero_points.len()
    }

    /// The elements, packed.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The scales as bytes.
    pub fn scales(&self) -> &[u8] {
        let bytes = usize::try_from(self.sizes.scale_bytes).unwrap_or(0);
        unsafe { std::slice::from_raw_parts(self.scales.as_ptr().cast(), bytes) }
    }

    /// The scale of the whole tensor, of formats in two levels.
    pub fn global_scale(&self) -> Option<f32> {
        self.global_scale.first().copied()
    }

    /// Calls with the C struct, of a tensor that is read.
    fn with<R>(&self, call: impl FnOnce(&ffi::ScaledTensor) -> R) -> R {
        let parts = [
            self.data.as_ptr(),
            self.scales.as_ptr().cast(),
            self.global_scale.as_ptr().cast(),
            self.zero_points.as_ptr(),
        ];
        self.describe(parts.map(|part| part as *mut c_void), call)
    }

    /// Calls with the C struct, of a tensor that is written.
    fn with_mut<R>(&mut self, call: impl FnOnce(&ffi::ScaledTensor) -> R) -> R {
        let parts = [
            self.data.as_mut_ptr().cast(),
            self.scales.as_mut_ptr().cast(),
            self.global_scale.as_mut_ptr().cast(),
            self.zero_points.as_mut_ptr().cast(),
        ];
        self.describe(parts, call)
    }

    /// The C struct, which points to memory of this call and to the parts.
    fn describe<R>(&self, parts: [*mut c_void; 4], call: impl FnOnce(&ffi::ScaledTensor) -> R) -> R {
        let info = self.format.info();
        let byte = ffi::DLDataType { code: ffi::UINT, bits: 8, lanes: 1 };
        let of_scales = &self.sizes.scales[..if self.sizes.scale_ndim == 0 { 0 } else { 2 }];
        let data = describe(parts[0], info.element, &self.sizes.data);
        let scales = describe(parts[1], info.scale, of_scales);
        let global = describe(parts[2], f32::DTYPE, &[]);
        let zero_points = describe(parts[3], byte, of_scales);
        call(&ffi::ScaledTensor {
            format: self.format.number,
            axis: if self.axis == Axis::Rows { -1 } else { -2 },
            layout: 0,
            rotation: self.rotation,
            data: &data,
            scales: &scales,
            global_scale: if self.global_scale.is_empty() { ptr::null() } else { &global },
            zero_points: if info.element.code == ffi::UINT { &zero_points } else { ptr::null() },
            biases: ptr::null(),
        })
    }
}

/// Quantizes a matrix.
pub fn quantize<T: Element>(x: Matrix<'_, T>, format: Format, options: Options) -> Result<Quantized> {
    let mut result = Quantized::allocate(format, x.shape, &options)?;
    let from = describe(x.data.as_ptr() as *mut c_void, T::DTYPE, &x.shape);
    if options.global_scale == Some(0.0) {
        return Err(Error::OPTION); // by which the C API would find it
    }
    let global = options.global_scale.unwrap_or(0.0);
    check(
        result
            .with_mut(|q| unsafe { ffi::dlfp4_quantize(&from, ptr::null(), global, q, ptr::null(), ptr::null_mut()) }),
    )?;
    Ok(result)
}

/// Decodes a matrix.
pub fn dequantize<T: Element>(q: &Quantized, mut out: MatrixMut<'_, T>) -> Result<()> {
    let to = out.dl();
    check(q.with(|q| unsafe { ffi::dlfp4_dequantize(q, &to, ptr::null_mut()) }))
}

/// `out = x` in out's type, to nearest even.
pub fn cast<T: Element, U: Element>(x: Matrix<'_, T>, mut out: MatrixMut<'_, U>) -> Result<()> {
    let from = describe(x.data.as_ptr() as *mut c_void, T::DTYPE, &x.shape);
    let to = out.dl();
    check(unsafe { ffi::dlfp4_cast(&from, &to, ptr::null(), 0, ptr::null_mut()) })
}

/// An operand of a product: a [`Matrix`], or a [`Quantized`] one whose blocks run along the products' sums.
pub trait Operand: sealed::Sealed {
    /// Calls with the C struct.
    #[doc(hidden)]
    fn with_struct(&self, call: &mut dyn FnMut(&ffi::ScaledTensor));
}

impl<T: Element> Operand for Matrix<'_, T> {
    fn with_struct(&self, call: &mut dyn FnMut(&ffi::ScaledTensor)) {
        let data = describe(self.data.as_ptr() as *mut c_void, T::DTYPE, &self.shape);
        call(&ffi::ScaledTensor {
            format: ffi::PLAIN,
            axis: 0,
            layout: 0,
            rotation: 0,
            data: &data,
            scales: ptr::null(),
            global_scale: ptr::null(),
            zero_points: ptr::null(),
            biases: ptr::null(),
        })
    }
}

impl Operand for Quantized {
    fn with_struct(&self, call: &mut dyn FnMut(&ffi::ScaledTensor)) {
        self.with(|q| call(q))
    }
}

/// `out(i, j) = alpha *` the sum over k of `a(i, k) * b(j, k)`: activations of (M, K) by weights of (N, K).
pub fn matmul<T: Element>(a: &impl Operand, b: &impl Operand, mut out: MatrixMut<'_, T>, alpha: f32) -> Result<()> {
    let to = out.dl();
    let options = ffi::MatmulOptions { activation: 0, alpha };
    let mut status = ffi::OK;
    a.with_struct(&mut |left| {
        b.with_struct(&mut |right| {
            let bytes = unsafe { ffi::dlfp4_matmul_workspace(left, right, &to, &options) };
            let mut workspace: Vec<u8> = zeros(bytes);
            let memory = workspace.as_mut_ptr().cast();
            status = unsafe { ffi::dlfp4_matmul(left, right, &to, &options, memory, ptr::null_mut()) };
        })
    });
    check(status)
}

/// Which rows of [`grouped_matmul`] each expert multiplies.
#[derive(Clone, Copy, Debug)]
pub struct Routing<'a> {
    /// For each expert where its routed rows end; those of expert `e` begin at `ends[e - 1]`.
    pub ends: &'a [i64],
    /// For each routed row its row of x; `None`: the routed rows are those of x, in order.
    pub indices: Option<&'a [i64]>,
    /// For each routed row a factor, with which it is added to row `indices` of the result; needs `indices`.
    pub weights: Option<&'a [f32]>,
}

/// A vector of the host, or NULL, for the length of a call.
fn with_vector<T, R>(numbers: Option<&[T]>, dtype: ffi::DLDataType, call: impl FnOnce(*const ffi::DLTensor) -> R) -> R {
    let numbers = match numbers {
        Some(numbers) => numbers,
        None => return call(ptr::null()),
    };
    let shape = [i64::try_from(numbers.len()).unwrap_or(i64::MAX)];
    call(&describe(numbers.as_ptr() as *mut c_void, dtype, &shape))
}

/// The product of [`matmul`] by each expert: `x` of (rows, K), or, with indices, of tokens, by `w` of
/// (experts * N, K), the weights of one expert after those of the other. `out` is (routed rows, N), zero beyond the
/// last end, or, with weights, (tokens, N).
pub fn grouped_matmul<T: Element>(
    x: &impl Operand,
    w: &impl Operand,
    routing: Routing<'_>,
    mut out: MatrixMut<'_, T>,
    alpha: f32,
) -> Result<()> {
    const INT64: ffi::DLDataType = ffi::DLDataType { code: 0, bits: 64, lanes: 1 };
    let to = out.dl();
    let options = ffi::MatmulOptions { activation: 0, alpha };
    let mut status = ffi::OK;
    let mut call = |left: &ffi::ScaledTensor, right: &ffi::ScaledTensor, rows: &ffi::Routing| {
        let bytes = unsafe { ffi::dlfp4_grouped_matmul_workspace(left, right, rows, &to, &options) };
        let mut workspace: Vec<u8> = zeros(bytes);
        let memory = workspace.as_mut_ptr().cast();
        status = unsafe { ffi::dlfp4_grouped_matmul(left, right, rows, &to, &options, memory, ptr::null_mut()) };
    };
    with_vector(Some(routing.ends), INT64, |ends| {
        with_vector(routing.indices, INT64, |indices| {
            with_vector(routing.weights, f32::DTYPE, |weights| {
                let gathers = i32::from(routing.indices.is_some());
                let rows = ffi::Routing { ends, indices, weights, gathers };
                x.with_struct(&mut |left| w.with_struct(&mut |right| call(left, right, &rows)));
            })
        })
    });
    check(status)
}
