//! Style is a test: the house rules, checked over every file of the repository.
//!
//! A check is a function over files that returns faults, each naming file, line and what would be
//! right. Beside each check stands a test that plants a violation and sees it caught; the tests
//! here run the checks over the real tree. What clippy and the compiler already hold (function
//! length, clock reads, missing docs) is not repeated: `lints_are_inherited` holds that they are
//! on.
//!
//! - [`tree`]: files, faults and the listing of the repository
//! - [`code`]: Rust text without its comments and strings, and where its tests begin
//! - [`style`]: sizes, headers, names, debris
//! - [`rooms`]: which room may use which; [`arrows`]: the same for the modules of the server
//! - [`house`]: what belongs together across files: doors, manifests, records
//! - [`links`]: links between pages; [`paths`]: the listed ways of requests; [`quotes`]: messages
//!   that the troubleshooting page names

mod arrows;
mod code;
mod house;
mod links;
mod paths;
mod quotes;
mod rooms;
mod style;
mod tree;

use tree::{Fault, File, Tree};

#[track_caller]
fn hold(faults: Vec<Fault>) {
    let lines: Vec<String> = faults.iter().map(Fault::to_string).collect();
    assert!(lines.is_empty(), "the house rules are broken:\n{}", lines.join("\n"));
}

#[track_caller]
fn each_file(check: fn(&File) -> Vec<Fault>) {
    hold(Tree::load().files.iter().flat_map(check).collect());
}

#[test]
fn the_listing_sees_the_repository() {
    let tree = Tree::load();
    for path in ["Cargo.toml", "README.md", "Makefile", "crates/core/src/lib.rs"] {
        assert!(tree.has(path), "{path} is missing from the listing of {}", tree.files.len());
    }
    assert!(tree.files.iter().all(|file| !file.path.starts_with("target/")));
}

#[test]
fn files_are_short() {
    each_file(style::short);
}

#[test]
fn the_readme_is_a_shop_window() {
    each_file(style::shop_window);
}

#[test]
fn files_open_by_saying_what_they_are_for() {
    each_file(style::opening);
}

#[test]
fn lines_are_narrow() {
    each_file(style::narrow);
}

#[test]
fn names_say_what_things_are() {
    each_file(style::names);
}

#[test]
fn nothing_is_left_lying_about() {
    each_file(style::debris);
}

#[test]
fn no_path_of_one_machine() {
    each_file(style::machine_paths);
}

#[test]
fn unsafe_stays_where_it_is_proved() {
    each_file(style::unsafe_places);
}

#[test]
fn tests_do_not_sleep() {
    each_file(style::sleeping_tests);
}

#[test]
fn exceptions_from_lints_have_reasons() {
    each_file(style::exceptions);
}

#[test]
fn the_law_and_the_codecs_are_pure() {
    each_file(rooms::purity);
}

#[test]
fn crates_look_one_way() {
    each_file(rooms::crates);
}

#[test]
fn doors_know_neither_each_other_nor_the_store() {
    hold(rooms::doors(&Tree::load()));
}

#[test]
fn modules_of_the_server_look_one_way() {
    hold(arrows::arrows(&Tree::load()));
}

#[test]
fn the_gate_is_narrow_and_names_no_door() {
    hold(rooms::gate(&Tree::load()));
}

#[test]
fn anyhow_stays_in_the_binary() {
    each_file(rooms::anyhow);
}

#[test]
fn lints_are_inherited() {
    hold(house::lints(&Tree::load()));
}

#[test]
fn each_door_has_what_belongs_to_it() {
    hold(house::doors(&Tree::load()));
}

#[test]
fn every_source_file_is_compiled() {
    hold(house::orphans(&Tree::load()));
}

#[test]
fn decision_records_have_their_three_parts() {
    each_file(house::records);
}

#[test]
fn ways_of_requests_are_there() {
    hold(paths::stale(&Tree::load()));
}

#[test]
fn links_resolve() {
    hold(links::resolve(&Tree::load()));
}

#[test]
fn quoted_messages_are_said() {
    hold(quotes::quotes(&Tree::load()));
}
