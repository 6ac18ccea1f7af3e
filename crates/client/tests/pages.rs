//! The Rust that pages show, compiled: each block of a page stands here, word for word.
//!
//! Nothing of it runs: `examples/` has programs that do.
#![cfg(feature = "tower")]

use std::path::{Path, PathBuf};

/// What is compiled.
const HERE: &str = include_str!("pages.rs");
/// Folders with pages.
const FOLDERS: [&str; 4] = ["", "docs", "docs/doors", "docs/guides"];

#[rustfmt::skip]
#[expect(dead_code, unused_variables, reason = "pages show how it begins, not what follows")]
mod shown {
    use std::error::Error;

    use axum::{Router, ServiceExt, extract::Request};
    use tidegate_client::gatekeeper::Gatekeeper;
    use tidegate_client::layer::GatekeeperLayer;
    use tokio::net::TcpListener;
    use tower::Layer;

    struct TooManyRequests;

    impl<E: Error> From<E> for TooManyRequests {
        fn from(_: E) -> Self {
            Self
        }
    }

    async fn text() -> Result<(), TooManyRequests> {
        let client = tidegate_client::TextClient::connect("127.0.0.1:2000").await?;
        if client.over_limit(b"ws ip=1.2.3.4").await?.is_over() {
            return Err(TooManyRequests);
        }
        Ok(())
    }

    async fn weather() -> Result<(), Box<dyn Error>> {
        use tidegate_client::gatekeeper::{Config, Decision, Gatekeeper, Master};

        let master = Master::new("tcp://127.0.0.1:10004", "tcp://127.0.0.1:10005", ["api"]);
        let gatekeeper = Gatekeeper::connect(&Config::new([master]))?;

        match gatekeeper.decide("api", b"weather") {
            Decision::Accept => {}                         // call now
            Decision::Delay(delay) => delay.wait().await,  // call after that
            Decision::Reject(retry_after) => { /* the wait would be longer than `max_delay` */ }
        }
        Ok(())
    }

    async fn gatekeeper() -> Result<(), Box<dyn Error>> {
        use tidegate_client::gatekeeper::{Config, Decision, Gatekeeper, Master};

        let master = Master::new("tcp://10.0.0.7:10004", "tcp://10.0.0.7:10005", ["api"]);
        let gatekeeper = Gatekeeper::connect(&Config::new([master]))?;

        match gatekeeper.decide("api", b"198.51.100.7") {
            Decision::Accept => {}                                  // it passes
            Decision::Delay(delay) => delay.wait().await,           // and then it passes
            Decision::Reject(retry_after) => { /* 503 */ }
        }
        Ok(())
    }

    async fn layer(
        gatekeeper: Gatekeeper,
        router: Router,
        listener: TcpListener,
    ) -> Result<(), Box<dyn Error>> {
        let layer = GatekeeperLayer::new(gatekeeper, "api", |head| head.header("x-api-key"));
        let app = layer.layer(router.with_state(()));
        axum::serve(listener, ServiceExt::<Request>::into_make_service(app)).await?;
        Ok(())
    }
}

/// The blocks of Rust in a page.
fn blocks(text: &str) -> Vec<&str> {
    let each = text.split("```rust\n").skip(1);
    each.map(|block| block.split("```").next().unwrap_or_default()).collect()
}

/// Without what indentation changes.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = |folder: &&str| std::fs::read_dir(root.join(folder)).expect("a folder");
    let paths = FOLDERS.iter().flat_map(files).map(|file| file.expect("a file").path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "md")).collect()
}

#[test]
fn every_block_of_rust_is_compiled() {
    let compiled = words(HERE);
    let mut count = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        for block in blocks(&text) {
            count += 1;
            let name = page.display();
            assert!(compiled.contains(&words(block)), "{name}: this is compiled nowhere:\n{block}");
        }
    }
    assert!(count > 3, "the pages show little Rust");
    assert_eq!(blocks("x\n```rust\nlet a;\n```\n```\nb\n```\n"), ["let a;\n"]);
}
