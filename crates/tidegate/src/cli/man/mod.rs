//! `tidegate man [COMMAND]`: manual pages, written from the same definition as the help.
//!
//! What the definition does not know (codes, files, examples) is in `sections`.

mod sections;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use self::sections::Page;
use super::output::print;
use super::{CliError, Code, OK};

/// The arguments of `tidegate man`.
#[derive(Debug, clap::Args)]
pub(super) struct ManArgs {
    /// The command to explain, such as `config check`; without it the program as a whole.
    #[arg(conflicts_with = "folder")]
    command: Vec<String>,
    /// Write the page of every command into this folder.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

pub(super) fn run(args: &ManArgs, mut whole: clap::Command) -> Result<Code, CliError> {
    whole.build();
    if let Some(folder) = &args.folder {
        write_all(folder, &whole)
            .with_context(|| format!("cannot write pages to {}", folder.display()))?;
        return Ok(OK);
    }
    let mut found = &whole;
    for name in &args.command {
        let unknown = || CliError::Usage(format!("there is no command \"{name}\""));
        found = found.find_subcommand(name).ok_or_else(unknown)?;
    }
    print(&page(found, &args.command.join(" ")).context("cannot write the manual page")?)?;
    Ok(OK)
}

fn write_all(folder: &Path, whole: &clap::Command) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    for (words, command) in commands(whole) {
        let name = [&["tidegate"], &words[..]].concat().join("-");
        fs::write(folder.join(name + ".1"), page(command, &words.join(" "))?)?;
    }
    Ok(())
}

/// Every command that has a page, with the words that follow the program's name.
fn commands(whole: &clap::Command) -> Vec<(Vec<&str>, &clap::Command)> {
    let mut found = vec![(Vec::new(), whole)];
    let mut at = 0;
    while let Some((words, command)) = found.get(at).cloned() {
        // Clap adds `help` wherever there are commands; it has nothing to explain.
        let below = command.get_subcommands().filter(|command| command.get_name() != "help");
        found.extend(below.map(|command| {
            let name = command.get_name();
            ([&words[..], &[name]].concat(), command)
        }));
        at += 1;
    }
    found
}

/// The page of one command.
fn page(command: &clap::Command, words: &str) -> std::io::Result<Vec<u8>> {
    let version = concat!("tidegate ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).source(version);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(more) = sections::of(words) {
        write_more(more).to_writer(&mut page)?;
    }
    if command.get_version().is_some() {
        man.render_version_section(&mut page)?;
    }
    Ok(page)
}

/// What the definition of the command does not know.
fn write_more(Page { exits, files, examples, .. }: &Page) -> Roff {
    let mut more = Roff::new();
    more.control("SH", ["EXIT STATUS"]);
    exits.iter().for_each(|(code, meaning)| entry(&mut more, code, meaning));
    if !files.is_empty() {
        more.control("SH", ["FILES"]);
        files.iter().for_each(|(path, meaning)| entry(&mut more, path, meaning));
    }
    more.control("SH", ["EXAMPLES"]);
    for (line, meaning) in *examples {
        more.control("PP", []).text([roman(*meaning)]);
        more.control("RS", ["4"]).control("EX", []);
        more.text([bold(*line)]);
        more.control("EE", []).control("RE", []);
    }
    more
}

fn entry(page: &mut Roff, name: &str, meaning: &str) {
    page.control("TP", []).text([bold(name)]).text([roman(meaning)]);
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::{Cli, parse};

    fn whole() -> clap::Command {
        let mut whole = Cli::command();
        whole.build();
        whole
    }

    #[test]
    fn every_command_has_a_page_with_codes_and_examples() {
        let whole = whole();
        for (words, command) in commands(&whole) {
            let words = words.join(" ");
            assert!(
                sections::of(&words).is_some(),
                "man/sections.rs says nothing of `tidegate {words}`"
            );
            let page = String::from_utf8(page(command, &words).expect("a page")).expect("text");
            for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "EXAMPLES"] {
                assert!(
                    page.contains(&format!(".SH \"{heading}\""))
                        || page.contains(&format!(".SH {heading}")),
                    "{words}: {heading} in {page}"
                );
            }
        }
    }

    #[test]
    fn commands_that_read_the_configuration_name_its_files() {
        let whole = whole();
        let reads = |argument: &clap::Arg| argument.get_env() == Some("TIDEGATE_CONFIG".as_ref());
        let mut seen = 0;
        for (words, command) in commands(&whole) {
            if words.is_empty() || command.get_arguments().any(reads) {
                let page = page(command, &words.join(" ")).expect("a page");
                let page = String::from_utf8(page).expect("text");
                assert!(page.contains(".SH FILES\n"), "{words:?}: {page}");
                assert!(page.contains("/etc/tidegate/tidegate.toml"), "{words:?}: {page}");
                seen += 1;
            }
        }
        assert!(seen > 2, "the program, `serve` and `config` read it");
    }

    #[test]
    fn sections_are_of_commands_that_exist() {
        let whole = whole();
        let known: Vec<String> =
            commands(&whole).into_iter().map(|(words, _)| words.join(" ")).collect();
        for Page { words, .. } in &sections::PAGES {
            assert!(known.iter().any(|known| known == words), "there is no `tidegate {words}`");
        }
    }

    #[test]
    fn examples_are_command_lines_that_the_program_takes() {
        for Page { words, examples, .. } in &sections::PAGES {
            assert!(!examples.is_empty(), "{words}");
            for (line, _) in *examples {
                // What the shell does with a result is not ours.
                let ours = line.split([';', '|', '>']).next().unwrap_or_default();
                let given = shell_words(ours);
                let parsed = parse(given.iter().map(Into::into));
                assert!(parsed.is_ok(), "{line}: {}", parsed.expect_err("a mistake"));
            }
        }
    }

    /// The words of a line, as a shell takes single quotes.
    fn shell_words(line: &str) -> Vec<String> {
        let (mut words, mut quoted) = (vec![String::new()], false);
        for c in line.trim().chars() {
            match c {
                '\'' => quoted = !quoted,
                ' ' if !quoted => words.push(String::new()),
                c => words.last_mut().expect("a word").push(c),
            }
        }
        words
    }
}
