//! Why the store cannot be opened. What a single hold or read may meet is in [`super::HoldError`] and
//! [`super::ReadError`].

use std::io;
use std::path::{Path, PathBuf};

/// The store cannot be opened; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the directory.
    #[error("{} is in use by another process: stop it, or name another --data-dir", .0.display())]
    Locked(PathBuf),
    /// A later release wrote the directory.
    #[error(
        "{} was written by a newer release (format {found}, this one knows {known}): start that release",
        .path.display()
    )]
    Newer {
        /// The FORMAT file.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The highest we know.
        known: u64,
    },
    /// The FORMAT file says something no release writes.
    #[error("{} is not a FORMAT file of this program: {why}", .path.display())]
    Format {
        /// The FORMAT file.
        path: PathBuf,
        /// What does not fit.
        why: String,
    },
    /// The system refuses.
    #[error("{what} {}", .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
}

impl OpenError {
    /// Wraps an error of the system, with what was tried on which file.
    pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { what, path, source }
    }
}
