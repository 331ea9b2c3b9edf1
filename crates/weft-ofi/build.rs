//! How the plug-in is linked.

fn main() {
    // Once loaded it stays: its threads may be on their way out when libfabric lets go of it, and whoever looks for
    // leaks at the very end still finds its symbols.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
