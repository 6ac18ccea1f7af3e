//! Links between pages: the file is there, and so is the heading.

use crate::code::lines;
use crate::tree::{Fault, File, Tree};

/// Faults of every relative link in a page that leads nowhere.
pub(crate) fn resolve(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for page in tree.files.iter().filter(|file| file.is("md")) {
        for (number, target) in targets(page) {
            let away = ["http://", "https://", "mailto:"];
            if away.iter().any(|scheme| target.starts_with(scheme)) {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = from(&page.path, path);
            if !path.is_empty() && !tree.has(&path) {
                faults.push(page.fault(number, format!("the link to `{target}` leads nowhere")));
            } else if let Some(other) = tree.find(&path).filter(|file| file.is("md"))
                && !anchor.is_empty()
                && !anchors(other).iter().any(|known| known == anchor)
            {
                let what = format!("`{}` has no heading `#{anchor}`", other.path);
                faults.push(page.fault(number, what));
            }
        }
    }
    faults
}

/// The lines of a page outside of its fenced blocks and code spans.
fn prose(page: &File) -> Vec<(usize, String)> {
    let (mut fenced, mut span) = (false, false);
    let mut out = Vec::new();
    for (number, line) in lines(&page.text) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            // A span may run over a line's end, but not over a paragraph's.
            span &= !line.trim().is_empty();
            let mut spoken = String::new();
            for c in line.chars() {
                span ^= c == '`';
                if !span {
                    spoken.push(c);
                }
            }
            out.push((number, spoken));
        }
    }
    out
}

/// Where the links of a page lead, with their lines.
fn targets(page: &File) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(page) {
        for piece in line.split("](").skip(1) {
            let target = piece.split([')', ' ']).next().unwrap_or_default();
            found.push((number, target.trim_matches(['<', '>']).to_owned()));
        }
        // A reference: `[name]: target`.
        if let Some((name, target)) = line.split_once("]: ")
            && name.starts_with('[')
        {
            found.push((number, target.trim().to_owned()));
        }
    }
    found
}

/// `target` as a path from the root, as seen from `page`; the page itself if it is empty.
fn from(page: &str, target: &str) -> String {
    if target.is_empty() {
        return page.to_owned();
    }
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let start = if target.starts_with('/') { "" } else { folder };
    let mut parts: Vec<&str> = start.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of a page's headings, as forges make them.
fn anchors(page: &File) -> Vec<String> {
    let mut fenced = false;
    let mut out = Vec::new();
    for line in page.text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        let heading = line.trim_start_matches('#');
        if fenced || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = heading.trim().to_lowercase().replace(' ', "-");
        out.push(kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect());
    }
    out
}

#[test]
fn links_that_lead_nowhere_are_caught() {
    let check = |text: &str, expected: &[usize]| {
        let other = ("docs/b.md", "# The house\n## Add a door: how\n");
        let tree = Tree::of(&[("docs/a.md", text), other, ("README.md", "# Top")]);
        let found: Vec<usize> = resolve(&tree).iter().map(|fault| fault.line).collect();
        assert_eq!(found, expected, "{text}");
    };
    check("[b](b.md) [top](../README.md) [docs](../docs) [root](/README.md)", &[]);
    check("x\n[b](c.md) and [d](../b.md)", &[2, 2]);
    check("[b](b.md#add-a-door-how) [b](b.md#the-house)", &[]);
    check("[b](b.md#add-a-window)", &[1]);
    check("# Here\n[up](#here)\n[down](#there)", &[3]);
    check("`[b](c.md)`\n```\n[b](c.md)\n```\n[b](https://example.org/c.md)", &[]);
    check("a `span [b](c.md)\n[b](c.md)` [b](c.md)\n\n` [b](c.md)\n\n[b](c.md)", &[2, 6]);
    check("see [b].\n\n[b]: c.md", &[3]);
}
