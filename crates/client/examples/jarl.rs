//! Calls a service as often as a JARL server lets it.
//!
//!     tidegate jarl --service Example --requests 3 --period 2 --ip 127.0.0.1 --port 1234 --exact
//!     cargo run -p tidegate-client --example jarl -- 127.0.0.1:1234
//!
//! The argument is the door's address.

use tidegate_client::jarl::{Advice, JarlClient};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:1234".into());
    let service = JarlClient::new(server);
    for call in 1..=8 {
        match service.wait().await {
            Advice::Wait(delay) => println!("call {call}: after {delay:?}"),
            // As without a limiter: the service itself may refuse, and that must be handled.
            Advice::GoOn(why) => println!("call {call}: unlimited, {why}"),
        }
    }
}
