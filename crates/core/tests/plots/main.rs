//! Draws what each algorithm admits of the same load, for the page that helps to choose one.
//!
//! The pictures lie in `docs/guides/plots`; the test fails if the algorithms would draw others.
//! `TIDEGATE_DRAW=1 cargo test -p tidegate-core --test plots` draws them anew.

mod load;
mod svg;

use std::path::Path;

use load::{Load, offered};
use tidegate_core::Algorithm;

/// A picture: its file, its title, and the algorithm that admits. The limit is 10 per 10 s.
const PICTURES: [(&str, &str, Algorithm); 10] = [
    ("gcra", "gcra: 10 per 10s", Algorithm::Gcra { burst: 10 }),
    ("gcra-burst", "gcra: 10 per 10s burst 3", Algorithm::Gcra { burst: 3 }),
    ("fixed-window", "fixed-window: 10 per 10s", Algorithm::FixedWindow),
    ("sliding-window", "sliding-window: 10 per 10s", Algorithm::SlidingWindow),
    ("sliding-log", "sliding-log: 10 per 10s", Algorithm::SlidingLog),
    ("average", "average: 10 per 10s", Algorithm::Average { strict: false }),
    ("average-strict", "average, strict: 10 per 10s", Algorithm::Average { strict: true }),
    ("smockron", "smockron: 10 per 10s", Algorithm::Smockron { burst: 10 }),
    ("jarl", "jarl, exact: 10 per 10s, starts", Algorithm::Jarl { exact: true }),
    ("in-flight", "4 in flight, uses of 4 s", Algorithm::InFlight { per_window: false }),
];

fn draw(title: &str, algorithm: Algorithm) -> String {
    let load = offered();
    svg::picture(title, &load, &load.admitted(algorithm))
}

#[test]
fn the_pictures_are_what_the_algorithms_admit() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/plots");
    for (name, title, algorithm) in PICTURES {
        let path = folder.join(name).with_extension("svg");
        let drawn = draw(title, algorithm);
        if std::env::var_os("TIDEGATE_DRAW").is_some_and(|value| value == "1") {
            std::fs::write(&path, &drawn).expect("the picture can be written");
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == drawn, "{name}.svg is out of date: TIDEGATE_DRAW=1 draws it anew");
    }
}

#[test]
fn nothing_is_admitted_that_was_not_offered() {
    let load: Load = offered();
    for (name, _, algorithm) in PICTURES {
        let admitted = load.admitted(algorithm);
        let offered: u64 = load.bars().iter().sum();
        assert!(admitted.iter().sum::<u64>() <= offered, "{name}");
        assert!(admitted.iter().any(|&bar| bar > 0), "{name}");
    }
}
