//! Reads the files that a configuration consists of and names.
//!
//! Only regular files are read: a FIFO or a device may have nothing to read for ever, and a reload
//! that waited for it would never end.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The largest file that is read.
pub(crate) const FILE_BYTES_MAX: u64 = 16 << 20;

/// All bytes of a regular file.
///
/// # Errors
/// Why it cannot be read.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Opening a FIFO would wait for its writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder"));
    }
    if !kind.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let error = format!("it is larger than {FILE_BYTES_MAX} bytes");
        return Err(io::Error::other(error));
    }
    Ok(bytes)
}

/// As [`read`], for text.
///
/// # Errors
/// Why it cannot be read.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let invalid = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8");
    String::from_utf8(read(path)?).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn regular_files_alone_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("text"), "a\n").expect("a file");
        assert_eq!(read_text(&path("text")).expect("a text"), "a\n");
        fs::write(path("bytes"), [0xff]).expect("a file");
        assert!(read_text(&path("bytes")).is_err_and(|error| error.to_string().contains("UTF-8")));
        let large = fs::File::create(path("large")).expect("a file");
        large.set_len(FILE_BYTES_MAX + 1).expect("a length");
        rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), 0o600.into()).expect("a FIFO");
        for (name, why) in
            [("large", "larger than"), ("fifo", "not a regular file"), (".", "a folder")]
        {
            let error = read(&path(name)).expect_err(name).to_string();
            assert!(error.contains(why), "{name}: {error}");
        }
    }
}
