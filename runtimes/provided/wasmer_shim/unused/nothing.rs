//! Stands in for a crate that wasmer names and, in this build, does not use: without it the build is shorter.
