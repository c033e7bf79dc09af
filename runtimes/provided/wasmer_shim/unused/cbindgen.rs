//! Stands in for the generator of a C header that nobody reads here. It declares what wasmer's build script names; that
//! script ends before it gets so far if DOCS_RS is set.

#[derive(Default)]
pub struct Config {
    pub sort_by: SortKey,
    pub cpp_compat: bool,
    pub more: (),
}

#[derive(Default)]
pub enum SortKey {
    #[default]
    Name,
}

pub enum Language {
    C,
}

pub struct Builder;

#[allow(clippy::new_without_default)]
impl Builder {
    pub fn new() -> Self {
        Self
    }

    pub fn generate(self) -> Result<Bindings, ()> {
        Err(())
    }
}

macro_rules! settings {
    ($($name:ident($($arg:ident),*))*) => {
        impl Builder {
            $(pub fn $name<$($arg),*>(self, $(_: $arg),*) -> Self {
                self
            })*
        }
    };
}

settings! {
    with_config(A) with_language(A) with_crate(A) with_include_guard(A) with_header(A) with_documentation(A)
    with_include(A) with_define(A, B, C)
}

pub struct Bindings;

impl Bindings {
    pub fn write_to_file<P>(&self, _path: P) -> bool {
        false
    }
}
