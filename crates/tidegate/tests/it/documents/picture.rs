//! The picture of a terminal in the README: the commands of its first session, and what they say.
//!
//! It is drawn from the page, which another test holds to what the programs do. `TIDEGATE_DRAW=1`
//! writes it anew.

use std::fmt::Write as _;
use std::path::Path;

use super::page::{self, Step};

const FILE: &str = "docs/terminal.svg";
/// Commands that are shown: the first of the page.
const COMMANDS: usize = 6;
/// Pixels of a line and of a letter.
const LINE: usize = 20;
const LETTER: usize = 9;
const MARGIN: usize = 16;

/// The lines of the first session, and whether each is typed.
fn lines(text: &str) -> Vec<(bool, String)> {
    let mut lines = Vec::new();
    let typed = page::read(text).steps.into_iter().filter_map(|step| match step {
        Step::Run(typed) => Some(typed),
        Step::Write { .. } => None,
    });
    for step in typed.take(COMMANDS) {
        let command = format!("$ {}", step.command);
        lines.extend(command.lines().map(|line| (true, line.to_owned())));
        lines.extend(step.shown.into_iter().map(|line| (false, line)));
    }
    lines
}

fn drawn(lines: &[(bool, String)]) -> String {
    let widest = lines.iter().map(|(_, line)| line.chars().count()).max().unwrap_or_default();
    let (width, height) = (widest * LETTER + 2 * MARGIN, lines.len() * LINE + 2 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
         <title>A session in a terminal</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1b1f24\"/>\n\
         <g font-family=\"monospace\" font-size=\"15\" xml:space=\"preserve\">\n"
    );
    for (number, (is_typed, line)) in lines.iter().enumerate() {
        let colour = if *is_typed { "#ffffff" } else { "#9fb4c7" };
        let line = line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let (down, long) = (MARGIN + (number + 1) * LINE - 5, line.chars().count() * LETTER);
        // The length keeps letters within the picture whatever font there is.
        let length = if long == 0 { String::new() } else { format!(" textLength=\"{long}\"") };
        writeln!(svg, "<text x=\"{MARGIN}\" y=\"{down}\" fill=\"{colour}\"{length}>{line}</text>")
            .expect("a string grows");
    }
    svg + "</g>\n</svg>\n"
}

#[test]
fn the_picture_shows_the_first_session() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("README.md")).expect("a page can be read");
    let picture = drawn(&lines(&page));
    if std::env::var_os("TIDEGATE_DRAW").is_some() {
        std::fs::write(root.join(FILE), &picture).expect("the picture can be written");
    }
    let kept = std::fs::read_to_string(root.join(FILE)).unwrap_or_default();
    assert!(kept == picture, "{FILE} is not what README shows; `TIDEGATE_DRAW=1` draws it anew");
}
