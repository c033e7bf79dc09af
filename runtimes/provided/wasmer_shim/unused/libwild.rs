//! Stands in for the linker that wasmer uses for an experimental form of artifacts, which is never asked for here: the
//! linker and what it needs would be a quarter of the build. It declares what is named, and refuses.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[macro_export]
macro_rules! error {
    ($($text:tt)*) => { $crate::error::Error(format!($($text)*)) };
}

pub mod error {
    #[derive(Debug)]
    pub struct Error(pub String);

    impl From<String> for Error {
        fn from(text: String) -> Self {
            Self(text)
        }
    }

    pub type Result<T = ()> = std::result::Result<T, Error>;
}

pub trait InputFileData {
    fn bytes(&self) -> &[u8];
}

pub trait OutputFileData {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
    fn finish(self) -> error::Result;
}

pub enum FileType {
    File,
}

pub struct OutputOptions {
    pub size: u64,
}

pub trait FileSystem {
    type Input: InputFileData;
    type Output: OutputFileData;
    fn open_input(&self, path: &Path, prepopulate: bool) -> error::Result<(Self::Input, Option<Arc<File>>)>;
    fn file_type(&self, path: &Path) -> error::Result<FileType>;
    fn canonicalize(&self, path: &Path) -> error::Result<PathBuf>;
    fn remove_file(&self, path: &Path) -> error::Result<()>;
    fn rename_file(&self, path: &Path, new_path: &Path) -> error::Result<()>;
    fn create_output(&self, path: Arc<Path>, options: OutputOptions) -> error::Result<Self::Output>;
    fn write_auxiliary(&self, path: &Path, bytes: &[u8]) -> error::Result;
}

pub struct Args;

impl Args {
    pub fn new<T>(_words: T) -> error::Result<Self> {
        Err(error!("there is no linker in this build"))
    }

    pub fn parse<T>(&mut self, _words: T) -> error::Result {
        Ok(())
    }
}

pub struct Linker<F>(#[allow(dead_code)] F);

impl<F: FileSystem> Linker<F> {
    pub fn with_file_system(files: F) -> Self {
        Self(files)
    }

    pub fn run(&self, _args: &Args) -> error::Result {
        Ok(())
    }
}
