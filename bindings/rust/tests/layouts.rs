//! The structs are as large as those of the header, by the numbers that C compilers give.

use dlfp4::ffi;
use std::mem::size_of;

#[test]
fn structs_are_those_of_the_header() {
    assert_eq!(size_of::<ffi::DLTensor>(), 48);
    assert_eq!(size_of::<ffi::FormatInfo>(), 32);
    assert_eq!(size_of::<ffi::Sizes>(), 56);
    assert_eq!(size_of::<ffi::ScaledTensor>(), 56);
    assert_eq!(size_of::<ffi::ConvertOptions>(), 16);
    assert_eq!(size_of::<ffi::Recipe>(), 56);
    assert_eq!(size_of::<ffi::MatmulOptions>(), 8);
    assert_eq!(size_of::<ffi::Routing>(), 32);
    assert_eq!(size_of::<ffi::Prepared>(), 56);
}
