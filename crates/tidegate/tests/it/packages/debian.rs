//! The Debian package: built of the program under test, and installed, used and purged in a root of
//! Debian that `make setup-test` has made.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{of_repository, run};
use crate::peers::{debian_root, tool_folder};
use crate::program::binary;

/// What an operator would type.
const IN_ROOT: &str = include_str!("in_root.sh");
/// How exposed the unit may be, in tenths.
const EXPOSURE_MAX: &str = "20";

/// Makes the package of the program under test, quickly rather than small.
fn package(folder: &Path, more: &[&str]) -> PathBuf {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut build = Command::new(of_repository("packaging/debian/build"));
    build.arg(binary()).arg(folder).args(["--fast", "--quiet"]).args(more);
    run(build.env("PATH", format!("{}:{path}", tool_folder().display())));
    let mut files =
        std::fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
    files.find(|path| path.extension().is_some_and(|end| end == "deb")).expect("a package")
}

#[test]
fn the_package_is_installed_asked_upgraded_and_purged() {
    let folder = tempfile::tempdir().expect("a folder");
    let built = |name: &str, more: &[&str]| package(&folder.path().join(name), more);
    let packages = [
        (built("old", &[]), "tidegate.deb"),
        (built("new", &["--deb-version", "99.0.0-1"]), "newer.deb"),
    ];
    let root = folder.path().join("root");
    std::fs::create_dir(&root).expect("a folder");
    let mut unpack = Command::new("tar");
    unpack.args(["--exclude=./dev/*", "--no-same-owner", "-xf"]).arg(debian_root());
    run(unpack.arg("-C").arg(&root));
    for (package, name) in packages {
        std::fs::rename(package, root.join(name)).expect("the same disk");
    }
    let mut inside = Command::new("unshare");
    if !rustix::process::getuid().is_root() {
        inside.args(["--map-root-user", "--map-auto"]);
    }
    // A network of its own has the default ports free. What runs in it ends with its first process.
    inside.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc"]);
    inside.arg(
        "PATH=$PATH:/usr/sbin:/sbin; ip link set lo up
        mount --rbind /dev \"$0/dev\"; mount -t proc proc \"$0/proc\"
        exec chroot \"$0\" timeout 120 sh -c \"$1\"",
    );
    let told = run(inside.arg(&root).arg(IN_ROOT));
    for expected in [
        "tidegate.toml: ok",
        "enabled",
        "ready",
        "refused by login",
        "allowed 5, then refused",
        "upgraded and back",
        "links lead somewhere",
        "purged",
    ] {
        assert!(told.contains(expected), "no {expected:?} in:\n{told}");
    }
    let took = told.lines().find(|line| line.starts_with("from apt install to the refusal"));
    println!("{}", took.expect("how long it took"));
}

#[test]
fn the_unit_is_right_and_gives_little_away() {
    let folder = tempfile::tempdir().expect("a folder");
    let unit = std::fs::read_to_string(of_repository("packaging/debian/tidegate.service"));
    let unit = unit.expect("a unit").replace("/usr/bin/tidegate", binary());
    // systemd would give up after five failed starts in ten seconds.
    let (of_unit, _) = unit.split_once("[Service]").expect("two parts");
    assert!(of_unit.contains("\nStartLimitIntervalSec=0\n"), "{of_unit}");
    let path = folder.path().join("tidegate.service");
    std::fs::write(&path, unit).expect("a file");
    let mut verify = Command::new("systemd-analyze");
    let told = run(verify.args(["verify", "--man=no"]).arg(&path));
    assert!(!told.contains("tidegate"), "{told}");
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE_MAX]);
    let told = run(security.arg(&path));
    println!("{}", told.lines().last().unwrap_or_default());
}
