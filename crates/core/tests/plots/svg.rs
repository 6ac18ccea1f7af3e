//! Writes a picture as plain SVG: an outline for what was offered, bars for what was admitted.
//! Whole numbers only, so that the same bars are the same bytes everywhere.

use std::fmt::Write as _;

use crate::load::{Load, SECONDS};

const LEFT: u64 = 8;
const TOP: u64 = 26;
const BAR_WIDTH: u64 = 6;
const REQUEST_HEIGHT: u64 = 10;
const REQUESTS_MAX: u64 = 6;

/// Text and outline in a grey for light pages, and another for dark ones.
const STYLE: &str = "text{font:12px sans-serif;fill:#57606a}.title{font-weight:bold}\
    .offered{fill:none;stroke:#8c959f}.admitted{fill:#2f81f7}.axis{stroke:#8c959f}\
    @media(prefers-color-scheme:dark){text{fill:#adbac7}.offered,.axis{stroke:#768390}}";

pub(crate) fn picture(title: &str, load: &Load, admitted: &[u64]) -> String {
    let offered = load.bars();
    let (width, floor) = (LEFT * 2 + SECONDS * 2 * BAR_WIDTH, TOP + REQUESTS_MAX * REQUEST_HEIGHT);
    let height = floor + 20;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\">\n<style>{STYLE}</style>\n"
    );
    let (of, sum) = (offered.iter().sum::<u64>(), admitted.iter().sum::<u64>());
    let mut line = |text: String| writeln!(svg, "{text}").expect("a string grows");
    line(format!("<text class=\"title\" x=\"{LEFT}\" y=\"16\">{title}</text>"));
    let right = width - LEFT;
    line(format!("<text x=\"{right}\" y=\"16\" text-anchor=\"end\">{sum} of {of}</text>"));
    for (class, bars) in [("admitted", admitted), ("offered", &offered)] {
        let mut path = String::new();
        for (at, &bar) in (0..).zip(bars).filter(|&(_, &bar)| bar > 0) {
            let (x, bar_height) = (LEFT + at * BAR_WIDTH, bar * REQUEST_HEIGHT);
            let wide = BAR_WIDTH - 1;
            write!(path, "M{x} {floor}v-{bar_height}h{wide}v{bar_height}z").expect("it grows");
        }
        line(format!("<path class=\"{class}\" d=\"{path}\"/>"));
    }
    line(format!("<path class=\"axis\" d=\"M{LEFT} {floor}H{right}\"/>"));
    for second in (0..=SECONDS).step_by(10) {
        let (x, y) = (LEFT + second * 2 * BAR_WIDTH, floor + 14);
        let anchor = match second {
            0 => "start",
            SECONDS => "end",
            _ => "middle",
        };
        line(format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{second} s</text>"));
    }
    svg.push_str("</svg>\n");
    svg
}
