//! A page as a list of steps: files to write and commands to run. It runs nothing itself.
//!
//! CONTRIBUTING says how a page marks its blocks; this is where the marks are read.

/// What stands for any text within a line of output, and alone in a line for any lines.
pub(super) const ANYTHING: &str = "…";
/// What stands for any digit, in a number that begins with a digit: `17xx.xxx`.
const ANY_DIGIT: char = 'x';

/// What a reader does at one place of a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Saves a block as a file.
    Write { name: String, text: String },
    /// Types a command and sees its output.
    Run(Typed),
}

/// A command, and what the page shows below it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Typed {
    /// Its line in the page, from 1.
    pub(super) line: usize,
    pub(super) command: String,
    pub(super) shown: Vec<String>,
}

impl Typed {
    /// Whether it goes on running: it is awaited by its last line of output, not by its end.
    pub(super) fn serves(&self) -> bool {
        self.command.ends_with('&') || self.shown.last().is_some_and(|line| line == "ready")
    }
}

/// A page that was read.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) steps: Vec<Step>,
    /// Why blocks cannot run, in the page's own words.
    pub(super) not_run: Vec<String>,
    /// Blocks that no mark explains.
    pub(super) faults: Vec<String>,
}

/// Reads the steps of a page.
pub(super) fn read(text: &str) -> Page {
    let mut page = Page::default();
    let mut before = String::new();
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            if line.trim_start() != line && line.trim_start().starts_with("$ ") {
                page.faults.push(format!("line {number}: a command outside of a console block"));
            }
            before = if line.is_empty() { before } else { before + line + "\n" };
            continue;
        };
        let block: Vec<&str> =
            lines.by_ref().map(|(line, _)| line).take_while(|line| *line != "```").collect();
        page.add(language, before.trim_end(), &block, number);
        before.clear();
    }
    page
}

impl Page {
    fn add(&mut self, language: &str, before: &str, block: &[&str], number: usize) {
        if let Some(why) = reason(before) {
            self.not_run.push(why.to_owned());
        } else if language == "console" {
            self.type_in(block, number);
        } else if let Some(name) = file_name(before) {
            let text = block.join("\n") + "\n";
            self.steps.push(Step::Write { name: name.to_owned(), text });
        } else if ["sh", "bash", "shell"].contains(&language) {
            self.faults.push(format!("line {number}: commands go into a console block"));
        } else if !["rust", "text"].contains(&language) {
            self.faults.push(format!("line {number}: which file is this block?"));
        }
    }

    fn type_in(&mut self, block: &[&str], number: usize) {
        let mut lines = block.iter().zip(number + 1..).peekable();
        while let Some((line, number)) = lines.next() {
            let Some(command) = line.strip_prefix("$ ") else {
                self.faults.push(format!("line {number}: output before any command"));
                continue;
            };
            let mut typed = Typed { line: number, command: command.to_owned(), shown: Vec::new() };
            while typed.command.ends_with('\\') {
                let more = lines.next().map_or("", |(line, _)| line);
                typed.command = format!("{}\n{more}", typed.command);
            }
            while let Some((line, _)) = lines.next_if(|(line, _)| !line.starts_with("$ ")) {
                typed.shown.push((*line).to_owned());
            }
            if typed.serves() && typed.shown.is_empty() {
                self.faults.push(format!("line {number}: what does it say when it is ready?"));
            }
            self.steps.push(Step::Run(typed));
        }
    }
}

/// The reason in `<!-- not run: reason -->`, directly above a block.
fn reason(before: &str) -> Option<&str> {
    let comment = before.strip_suffix("-->")?;
    let (_, comment) = comment.rsplit_once("<!--")?;
    Some(comment.trim().strip_prefix("not run:")?.trim()).filter(|why| !why.is_empty())
}

/// The name in "…`name`:", directly above a block.
fn file_name(before: &str) -> Option<&str> {
    before.strip_suffix("`:")?.rsplit_once('`').map(|(_, name)| name)
}

/// Whether the output is what the page shows.
pub(super) fn agrees(shown: &[String], output: &[String]) -> bool {
    match shown.split_first() {
        None => output.is_empty(),
        Some((line, rest)) if line == ANYTHING => {
            (0..=output.len()).any(|skipped| agrees(rest, &output[skipped..]))
        }
        Some((line, rest)) => output
            .split_first()
            .is_some_and(|(first, left)| line_agrees(line, first) && agrees(rest, left)),
    }
}

fn line_agrees(shown: &str, line: &str) -> bool {
    let Some((start, rest)) = shown.split_once(ANYTHING) else {
        return begins(line, shown).is_some_and(str::is_empty);
    };
    let Some(left) = begins(line, start) else { return false };
    let mut behind = left.char_indices().map(|(at, _)| &left[at..]).chain([""]);
    behind.any(|left| line_agrees(rest, left))
}

/// What is behind this text, if the line begins with it.
fn begins<'l>(line: &'l str, text: &str) -> Option<&'l str> {
    let (mut line, mut in_number) = (line.chars(), false);
    for shown in text.chars() {
        let found = line.next()?;
        let stands_for_digit = shown == ANY_DIGIT && in_number;
        if found != shown && !(stands_for_digit && found.is_ascii_digit()) {
            return None;
        }
        in_number = shown.is_ascii_digit() || in_number && ['.', ANY_DIGIT].contains(&shown);
    }
    Some(line.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn output_agrees_as_far_as_the_page_shows_it() {
        let check = |shown: &str, output: &str, expected: bool| {
            assert_eq!(agrees(&owned(shown), &owned(output)), expected, "{shown} <> {output}");
        };
        check("", "", true);
        check("", "x", false);
        check("a\nb", "a\nb", true);
        check("a\nb", "a\nc", false);
        check("a", "a\nb", false);
        check("a\nb", "a", false);
        check("…", "", true);
        check("…\nready", "x\ny\nready", true);
        check("…\nready", "x\nready\ny", false);
        check("a…\n…\nz", "abc\nx\nz", true);
        check("again in … s", "again in 1.234 s", true);
        check("again in … s", "again in 1.234 m", false);
        check("in 17xx.xxx s", "in 1799.870 s", true);
        check("in 17xx.xxx s", "in 17.870 s", false);
        check("in 17xx.xxx s", "in 1899.870 s", false);
        check("max 1x…", "max 10 s", true);
        check("max 1x", "mar 10", false);
        check("…a…b…", "xaxbx", true);
        check("…a…b…", "xbxax", false);
        check("ab…ba", "aba", false);
    }

    #[test]
    fn blocks_become_steps() {
        let text = "# T\n\nSave this as `a.toml`:\n\n```toml\nx = 1\n```\n\n```console\n\
            $ cat a.toml \\\n  | wc\n1\n$ true\n```\n\n```console\n$ serve\n…\nready\n```\n";
        let page = read(text);
        assert_eq!((page.faults, page.not_run), (vec![], vec![]));
        let typed = |line, command: &str, shown: &str| {
            Step::Run(Typed { line, command: command.to_owned(), shown: owned(shown) })
        };
        let expected = [
            Step::Write { name: "a.toml".to_owned(), text: "x = 1\n".to_owned() },
            typed(10, "cat a.toml \\\n  | wc", "1"),
            typed(13, "true", ""),
            typed(17, "serve", "…\nready"),
        ];
        assert_eq!(page.steps, expected);
        assert!(matches!(&page.steps[3], Step::Run(typed) if typed.serves()));
    }

    #[test]
    fn blocks_without_a_mark_are_faults() {
        let faults = |text: &str| read(text).faults.len();
        assert_eq!(faults("```sh\nmake\n```"), 1);
        assert_eq!(faults("```toml\nx = 1\n```"), 1);
        assert_eq!(faults("```yaml\nx: 1\n```"), 1);
        assert_eq!(faults("```\nx\n```"), 1);
        assert_eq!(faults("    $ make\n"), 1);
        assert_eq!(faults("```console\nmake\n```"), 1);
        assert_eq!(faults("```console\n$ serve &\n```"), 1);
        assert_eq!(faults("<!-- not run:  -->\n```sh\nmake\n```"), 1);
        assert_eq!(faults("```rust\nx()\n```\n```text\nx\n```"), 0);
        let page = read("<!-- not run: it\nbuilds -->\n```sh\nmake\n```");
        assert_eq!((page.faults.len(), page.not_run.join("")), (0, "it\nbuilds".to_owned()));
    }
}
