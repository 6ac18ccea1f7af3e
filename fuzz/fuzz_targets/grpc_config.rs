//! Any text as a file of envoyproxy/ratelimit: an error that names the file, or a configuration.
//!
//! What is loaded answers every descriptor with a key that fits, prints one line for each rule, and
//! can be imported.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_core::key::KEY_BYTES_MAX;
use tidegate_envoy::config::{Found, Options, Override, Unit, import, load};

fuzz_target!(|text: &str| {
    let config = match load(&[("file", text)], Options::default()) {
        Ok(config) => config,
        Err(error) => {
            assert!(error.to_string().starts_with("file: "));
            return;
        }
    };
    // The words of the file are the likeliest entries.
    let word = |text: char| text.is_whitespace() || ",:{}[]'\"".contains(text);
    let words: Vec<&str> = text.split(word).filter(|word| !word.is_empty()).take(64).collect();
    let given = Some(Override { requests_per_unit: 1, unit: Unit::Hour });
    let mut key = Vec::new();
    for domain in config.domains() {
        for entries in words.windows(4) {
            let entries = entries.chunks(2).map(|pair| (pair[0].as_bytes(), pair[1].as_bytes()));
            for given in [None, given] {
                for depth in 0..=2 {
                    key.clear();
                    let found = config.find(domain, entries.clone().take(depth), given, &mut key);
                    assert_ne!(found, Found::UnknownDomain);
                    assert!(key.len() <= KEY_BYTES_MAX);
                }
            }
            config.write_statistic(domain, entries, &mut String::new());
        }
    }
    let mut dump = String::new();
    config.dump(&mut dump).expect("a string takes all");
    let (rules, lost) = import::to_toml(&config);
    assert!(lost.iter().all(|it| !it.reason.is_empty()));
    assert!(dump.is_empty() || rules.contains("[[rule]]"));
});
