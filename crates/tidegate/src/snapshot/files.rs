//! The files of a snapshot: their names, and the steps by which a new one takes its place.
//!
//! `<path>` is the newest, `<path>.previous` the one before it, and `<path>.new` is being written.
//! A crash between two steps leaves the newest or the previous one whole, if one was whole before.
//! None of them is reached through a symbolic link, and only their owner may read them.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Keys can name people: only the owner may read them.
const OWNER_ONLY: u32 = 0o600;

/// Why no snapshot can be kept at a path.
#[derive(Debug, thiserror::Error)]
#[error("[snapshot] path = \"{path}\": {reason}", path = .path.display())]
pub struct BadPath {
    /// The path as the configuration says it.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// Whether snapshots can be read from and written to `path`. Leaves nothing behind.
///
/// # Errors
/// When its folder does not exist or cannot be written, or something other than a readable file
/// has its name.
pub fn check(path: &Path) -> Result<(), BadPath> {
    let bad = |reason: String| BadPath { path: path.to_owned(), reason };
    if path.file_name().is_none() {
        return Err(bad("it must name a file".to_owned()));
    }
    let folder = folder(path);
    let shown = folder.display();
    match fs::metadata(folder) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(bad(format!("{shown} is not a folder"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(bad(format!("the folder {shown} does not exist; create it first")));
        }
        Err(error) => return Err(bad(format!("the folder {shown} cannot be reached: {error}"))),
    }
    let probe = beside(path, "probe");
    match create(&probe) {
        Ok(_) => fs::remove_file(&probe)
            .map_err(|error| bad(format!("the folder {shown} cannot be written: {error}")))?,
        Err(error) => return Err(bad(format!("the folder {shown} cannot be written: {error}"))),
    }
    for file in [path.to_owned(), previous(path)] {
        match open(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(bad(format!("{} cannot be used: {error}", file.display())));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Opens a snapshot for reading: the file of that name and no other.
pub(super) fn open(path: &Path) -> io::Result<File> {
    // A pipe of that name must not hold up the start.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
    let file = opened.map_err(|error| {
        let link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
        let linked = || io::Error::other("it is a symbolic link; name the file itself");
        if link { linked() } else { error }
    })?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

/// Restricts a snapshot that was copied here to its owner. The mode of another user's file cannot
/// be changed, and stays.
pub(super) fn keep_private(file: &File) {
    let _ = file.set_permissions(Permissions::from_mode(OWNER_ONLY));
}

/// Makes a file that is written before it gets its name. What an earlier process left is removed.
pub(super) fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(OWNER_ONLY);
    options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path)
}

/// Renames the newest file to the previous one, and then the file that was just written to the
/// newest. Between the two steps the previous one is the newest. `rename` renames files.
pub(super) fn publish(
    path: &Path,
    mut rename: impl FnMut(&Path, &Path) -> io::Result<()>,
) -> io::Result<()> {
    match rename(path, &previous(path)) {
        // The first snapshot, or one after a newest that could not be used: the previous one is
        // all there is, and stays.
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    rename(&aside(path), path)
}

/// Gives a file that cannot be used another name, so that the next snapshot does not take its
/// place.
pub(super) fn set_aside(
    file: &Path,
    mut rename: impl FnMut(&Path, &Path) -> io::Result<()>,
) -> io::Result<Aside> {
    let name = beside(file, "damaged");
    let replaced = fs::symlink_metadata(&name).is_ok();
    rename(file, &name)?;
    Ok(Aside { name, replaced })
}

/// Where a file that cannot be used lies now.
#[derive(Debug)]
pub struct Aside {
    /// Its new name.
    pub name: PathBuf,
    /// Whether an older one had that name, and is gone.
    pub replaced: bool,
}

/// Makes what was renamed survive a loss of power.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder(path))?.sync_all()
}

/// The name of the snapshot before the newest.
pub(super) fn previous(path: &Path) -> PathBuf {
    beside(path, "previous")
}

/// The name of a snapshot that is being written.
pub(super) fn aside(path: &Path) -> PathBuf {
    beside(path, "new")
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}
