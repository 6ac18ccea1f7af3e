//! What is wrong with a configuration file, where, and what would be right.
//!
//! A problem is shown in two ways: drawn with the line and a caret for people at a terminal, and
//! as one plain line for logs and for `/readyz`.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;

use miette::{
    GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, NamedSource, Report,
    ThemeCharacters, ThemeStyles,
};

use super::mask;

/// One thing that is wrong, at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Bytes of the file that are wrong.
    pub span: Range<usize>,
    /// What is wrong with them.
    pub message: String,
    /// What would be right.
    pub remedy: String,
}

impl Problem {
    /// A problem at `span`.
    pub fn new(span: Range<usize>, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { span, message: message.into(), remedy: remedy.into() }
    }
}

/// All that is wrong with one file. Never empty.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", self.plain())]
pub struct Problems {
    file: String,
    text: Arc<str>,
    list: Vec<Problem>,
}

impl Problems {
    /// The problems of `text`, in the order of the file.
    #[must_use]
    pub fn new(file: &str, text: &str, mut list: Vec<Problem>) -> Self {
        list.sort_by_key(|problem| (problem.span.start, problem.span.end));
        list.dedup();
        Self { file: file.to_owned(), text: text.into(), list }
    }

    /// A file that could not even be read.
    #[must_use]
    pub fn unreadable(file: &str, error: &std::io::Error) -> Self {
        let remedy = match error.kind() {
            ErrorKind::IsADirectory => "name a file in this folder",
            ErrorKind::InvalidData => "save it as UTF-8",
            _ => "check the path and its permissions, or write one: tidegate config example",
        };
        let problem = Problem::new(0..0, format!("cannot read the file: {error}"), remedy);
        Self { file: file.to_owned(), text: "".into(), list: vec![problem] }
    }

    /// The problems in the order of the file.
    #[must_use]
    pub fn list(&self) -> &[Problem] {
        &self.list
    }

    /// One line for each problem: `file:line:column: what is wrong; what would be right`.
    #[must_use]
    pub fn plain(&self) -> String {
        let lines = self.list.iter().map(|problem| {
            let Problem { span, message, remedy } = problem;
            if self.text.is_empty() {
                return format!("{}: {message}; {remedy}", self.file);
            }
            let (line, column) = position(&self.text, span.start);
            format!("{}:{line}:{column}: {message}; {remedy}", self.file)
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Each problem with its line and a caret, for people. Secrets in the lines are hidden.
    #[must_use]
    pub fn drawn(&self, colour: bool) -> String {
        // An empty file has no line to draw.
        if self.text.is_empty() {
            return format!("{}\n", self.plain());
        }
        let styles = if colour { ThemeStyles::ansi() } else { ThemeStyles::none() };
        let theme = GraphicalTheme { characters: ThemeCharacters::ascii(), styles };
        let handler = GraphicalReportHandler::new_themed(theme).with_width(100);
        let text: Arc<str> = mask::masked(&self.text).into();
        let mut drawing = String::new();
        for problem in &self.list {
            let label = LabeledSpan::new_with_span(None, problem.span.clone());
            let diagnostic = MietteDiagnostic::new(&problem.message)
                .with_help(&problem.remedy)
                .with_label(label);
            let source = NamedSource::new(&self.file, text.clone());
            let report = Report::new(diagnostic).with_source_code(source);
            if handler.render_report(&mut drawing, report.as_ref()).is_err() {
                return self.plain();
            }
        }
        drawing
    }
}

/// Line and column of a byte, both from 1; columns count characters.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Problems {
        let text = "[text]\nlistn = \"ä\" # x\n";
        let problem = Problem::new(7..12, "unknown name \"listn\"", "did you mean \"listen\"?");
        Problems::new("t.toml", text, vec![problem])
    }

    #[test]
    fn the_plain_form_is_one_line_with_the_place() {
        let plain = "t.toml:2:1: unknown name \"listn\"; did you mean \"listen\"?";
        assert_eq!(example().plain(), plain);
        assert_eq!(position("a\nbä\nc", 6), (3, 1));
        assert_eq!(position("bä!", 3), (1, 3));
    }

    #[test]
    fn the_drawing_shows_the_line_and_carets() {
        let drawn = example().drawn(false);
        for part in ["t.toml:2:1", "listn = \"ä\" # x", "^^", "unknown name", "did you mean"] {
            assert!(drawn.contains(part), "{part:?} in\n{drawn}");
        }
        assert!(!drawn.contains('\u{1b}'), "no colours where there is no terminal");
    }
}
