//! The picture of a terminal in the README: its first session, and all that the programs say.
//!
//! It is drawn from what the programs do. `TIDEGATE_DRAW=1` writes it anew.

use std::fmt::Write as _;

use super::of_repository;
use super::page::{self, Step};
use super::session::{self, Said};

const FILE: &str = "docs/terminal.svg";
/// Commands that are shown: the first of the page.
const COMMANDS: usize = 6;
/// Pixels of a line, of a letter, and around the text.
const LINE: usize = 20;
const LETTER: usize = 9;
const MARGIN: usize = 16;

/// A line of the picture.
#[derive(Debug, PartialEq, Eq)]
enum Drawn {
    Typed(String),
    Said(String),
    /// Between the terminal in which the server runs and the one of its user.
    Edge,
}

/// The first session of a page: what is typed, and what it really says.
fn first_session(text: &str) -> Vec<Drawn> {
    let mut page = page::read(text);
    let is_typed = |step: &Step| matches!(step, Step::Run(_));
    let mut typed = page.steps.iter().enumerate().filter(|(_, step)| is_typed(step));
    let (last, _) = typed.nth(COMMANDS - 1).expect("a page with as many commands");
    page.steps.truncate(last + 1);
    let mut lines = Vec::new();
    for (typed, said) in session::play(&page) {
        lines.extend(format!("$ {}", typed.command).lines().map(|line| Drawn::Typed(line.into())));
        lines.extend(output(said).into_iter().map(Drawn::Said));
        lines.extend(typed.serves().then_some(Drawn::Edge));
    }
    lines
}

#[track_caller]
fn output(said: Said) -> Vec<String> {
    said.unwrap_or_else(|output| panic!("a command does not end; it says {output:#?}")).0
}

fn draw(lines: &[Drawn]) -> String {
    let length = |line: &Drawn| match line {
        Drawn::Typed(line) | Drawn::Said(line) => line.chars().count(),
        Drawn::Edge => 0,
    };
    let widest = lines.iter().map(length).max().unwrap_or_default();
    let (width, height) = (widest * LETTER + 2 * MARGIN, lines.len() * LINE + 2 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
         <title>A session in a terminal</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1b1f24\"/>\n\
         <g font-family=\"monospace\" font-size=\"15\" xml:space=\"preserve\">\n"
    );
    for (number, line) in lines.iter().enumerate() {
        let top = MARGIN + number * LINE;
        let (colour, text) = match line {
            Drawn::Typed(text) => ("#ffffff", text),
            Drawn::Said(text) => ("#9fb4c7", text),
            Drawn::Edge => {
                let middle = top + LINE / 2;
                writeln!(svg, "<path d=\"M0 {middle}H{width}\" stroke=\"#4a545e\"/>")
                    .expect("a string grows");
                continue;
            }
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let (down, long) = (top + LINE - 5, length(line) * LETTER);
        // The length keeps letters within the picture whatever font there is.
        let long = if long == 0 { String::new() } else { format!(" textLength=\"{long}\"") };
        writeln!(svg, "<text x=\"{MARGIN}\" y=\"{down}\" fill=\"{colour}\"{long}>{text}</text>")
            .expect("a string grows");
    }
    svg + "</g>\n</svg>\n"
}

/// A text with one digit in place of each number: times, and where letters stand, differ.
fn without_numbers(text: &str) -> String {
    let mut masked = String::new();
    for c in text.chars() {
        let c = if c.is_ascii_digit() { '0' } else { c };
        if c != '0' || !masked.ends_with('0') {
            masked.push(c);
        }
    }
    masked
}

#[test]
fn the_picture_shows_the_first_session() {
    let page = std::fs::read_to_string(of_repository("README.md")).expect("a page can be read");
    let picture = draw(&first_session(&page));
    if std::env::var_os("TIDEGATE_DRAW").is_some() {
        std::fs::write(of_repository(FILE), &picture).expect("the picture can be written");
    }
    let kept = std::fs::read_to_string(of_repository(FILE)).unwrap_or_default();
    let is_same = without_numbers(&kept) == without_numbers(&picture);
    assert!(is_same, "{FILE} is not what happens; `TIDEGATE_DRAW=1` draws it anew:\n{picture}");
}

#[test]
fn a_picture_has_what_was_said() {
    let page = "```console\n$ printf '%s\\n' a '<&>' ready; sleep 99 &\n…\nready\n\
        $ echo 17 \\\n  18\nx\n$ true\n$ true\n$ true\n$ true\n$ echo never\nx\n```\n";
    let lines = first_session(page);
    let said = |text: &str| Drawn::Said(text.to_owned());
    assert_eq!(lines[1..5], [said("a"), said("<&>"), said("ready"), Drawn::Edge]);
    assert_eq!(
        lines[5..8],
        [Drawn::Typed("$ echo 17 \\".to_owned()), Drawn::Typed("  18".to_owned()), said("17 18"),]
    );
    assert_eq!(lines.len(), 12, "{lines:#?}");
    let svg = draw(&lines);
    assert!(svg.contains(">&lt;&amp;&gt;</text>") && svg.contains(">17 18</text>"), "{svg}");
    assert_eq!(without_numbers("at 17.250 s, 8"), without_numbers("at 9.1 s, 10"));
    assert_ne!(without_numbers("4 left"), without_numbers("4 gone"));
}
