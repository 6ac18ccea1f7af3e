//! A limiter, a shared buffer and a news channel, all over one connection to a Throttr door.
//!
//!     cargo run -p tidegate-client --example throttr -- 127.0.0.1:9000 16
//!
//! The arguments are the door's address and its value size in bits.

use tidegate_client::throttr::{Request, Take, ThrottrClient, Ttl, Unit, ValueSize};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let server = arguments.next().unwrap_or_else(|| "127.0.0.1:9000".into());
    let bits: u8 = arguments.next().map_or(Ok(16), |bits| bits.parse())?;
    let client = ThrottrClient::connect(&server, ValueSize::try_from(bits)?).await?;

    // Three uses per minute: the counter is made by whoever comes first, and nobody races.
    let minute = Ttl::new(60, Unit::Seconds);
    for attempt in 1..=4 {
        let used = client.consume(b"example ip=1.2.3.4", 1, 3, minute).await?;
        println!("use {attempt}: taken {}, {} left", used.taken, used.remaining);
    }

    // A user's limit and everybody's: if one refuses, the other keeps what it has.
    let takes = [
        Take { cost: 1, quota: 3, ttl: minute, key: b"example ip=1.2.3.4" },
        Take { cost: 1, quota: 100, ttl: minute, key: b"example everybody" },
    ];
    let both = client.consume_many(&takes).await?;
    println!("both: taken {}, {} left for everybody", both.taken, both.counters[1].remaining);

    client.set(b"example motd", b"hello", minute).await?;
    if let Some(buffer) = client.get(b"example motd").await? {
        println!("motd: {} ({} s left)", String::from_utf8_lossy(&buffer.value), buffer.left);
    }

    // Many requests in one go; the replies come in the same order.
    let keys: Vec<String> = (0..100).map(|n| format!("example {n}")).collect();
    let requests: Vec<Request<'_>> =
        keys.iter().map(|key| Request::Query { key: key.as_bytes() }).collect();
    println!("pipeline: {} replies", client.pipeline(&requests).await?.len());

    let mut news = client.subscribe(b"example news").await?;
    client.publish(b"example news", b"something happened").await?;
    if let Some(event) = news.next().await {
        println!("news: {}", String::from_utf8_lossy(&event.payload));
    }
    Ok(())
}
