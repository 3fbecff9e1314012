//! Finds libdlfp4: in the folder DLFP4_LIB_DIR (`python -c 'import dlfp4; print(dlfp4.get_library_dir())'`), or by pkg-config.

use std::env;
use std::process::Command;

/// The folder of an installed library, as pkg-config knows it.
fn folder_by_pkg_config() -> Option<String> {
    let output = Command::new("pkg-config").args(["--variable=libdir", "dlfp4"]).output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?.trim().to_string();
    (output.status.success() && !folder.is_empty()).then_some(folder)
}

fn main() {
    println!("cargo:rerun-if-env-changed=DLFP4_LIB_DIR");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    println!("cargo:rustc-link-lib=dylib=dlfp4");
    if let Some(folder) = env::var("DLFP4_LIB_DIR").ok().or_else(folder_by_pkg_config) {
        println!("cargo:rustc-link-search=native={folder}");
        // For tests and examples of this crate. A program says itself where it finds the library when it runs; its
        // build script is told the folder, as DEP_DLFP4_LIBDIR.
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
        println!("cargo:libdir={folder}");
    } else {
        // Documentation and `cargo check` link nothing; a program is linked where the linker itself finds the library.
        println!(
            "cargo:warning=libdlfp4 is not found, which programs are linked with: set DLFP4_LIB_DIR to its folder, or \
             PKG_CONFIG_PATH to that of dlfp4.pc"
        );
    }
}
