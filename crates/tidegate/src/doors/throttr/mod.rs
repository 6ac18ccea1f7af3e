//! The Throttr door: records over TCP and Unix sockets, one value size per listener.
//!
//! - [`config`]: the `[[throttr]]` table
//! - [`socket`], [`poll`], [`turn`]: binding, waiting, and one loop; [`room`] has its connections
//! - [`connection`]: one socket: read, execute, write, close; [`output`] is what it writes from
//! - [`corridor`]: from bytes to replies, without a socket; [`conversation`] is a client of it
//! - [`guest`], [`channels`], [`post`]: who is subscribed to what, and events between loops
//! - [`hall`], [`card`], [`counts`], [`series`]: who is connected, and what all of them did
//! - [`clerk`]: the answers that go over everything there is; [`permits`] bounds their memory
//! - [`convert`]: wire words and the records' words
//!
//! For every address there is one loop for each core, each on a thread of its own; the kernel
//! spreads TCP clients over them, and the clients of a Unix socket are dealt out. The bytes of the
//! protocol are the business of `tidegate_wire::throttr`.

mod card;
mod channels;
mod clerk;
mod config;
mod connection;
mod conversation;
mod convert;
mod corridor;
mod counts;
mod guest;
mod hall;
mod output;
mod permits;
mod poll;
mod post;
mod room;
mod series;
mod socket;
mod turn;

use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tidegate_wire::throttr::ValueSize;

use self::connection::Bench;
use self::corridor::Corridor;
use self::guest::Floor;
use self::post::Post;
use self::socket::{Listener, SocketFile};
use self::turn::{Loop, Parts};
use super::io::limits::{Bounds, Limits};
use super::{Gate, Serving};
use crate::metrics::Door;
use crate::settings::listen::Address;

pub use self::config::{Bits, Config};
pub use self::conversation::Conversation;
pub use self::hall::Hall;

impl From<Bits> for ValueSize {
    fn from(bits: Bits) -> Self {
        match bits {
            Bits::Eight => ValueSize::Bits8,
            Bits::Sixteen => ValueSize::Bits16,
            Bits::ThirtyTwo => ValueSize::Bits32,
            Bits::SixtyFour => ValueSize::Bits64,
        }
    }
}

/// A door whose addresses are taken and that answers nobody yet.
pub struct Bound {
    /// For each address, its sockets: one for each loop.
    tcp: Vec<(SocketAddr, Vec<Listener>)>,
    unix: Option<(Listener, SocketFile)>,
    settings: Settings,
}

/// What every loop of a door is told.
#[derive(Clone)]
struct Settings {
    size: ValueSize,
    value_max: usize,
    idle_max: Duration,
    connections: Bounds,
}

/// Takes every address of `config`, or none.
///
/// # Errors
/// The address that cannot be had, and why.
pub fn bind(config: &Config) -> io::Result<Bound> {
    let listen = config.listen.iter().flat_map(|listen| listen.addresses());
    let tcp = listen.map(|&address| socket::bind_tcp(address, loops()));
    let settings = Settings {
        size: config.value_size.into(),
        value_max: usize::try_from(config.max_value.0).unwrap_or(usize::MAX),
        idle_max: config.idle_timeout.0,
        connections: config.connections(),
    };
    Ok(Bound {
        tcp: tcp.collect::<io::Result<_>>()?,
        unix: config.unix.as_deref().map(socket::bind_unix).transpose()?,
        settings,
    })
}

/// Loops for each address: one for each core.
fn loops() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

impl Bound {
    /// The addresses in file order, with the ports that were taken, then the path.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        let tcp = self.tcp.iter().map(|(address, _)| Address::Ip(*address));
        let unix = self.unix.iter().map(|(_, file)| Address::Unix(file.path().to_owned()));
        tcp.chain(unix).collect()
    }

    /// Begins to answer, on threads of its own.
    ///
    /// # Panics
    /// If the system refuses a thread, an epoll or an eventfd.
    #[must_use]
    pub fn serve(self, gate: Gate) -> Serving {
        let Self { tcp, unix, settings } = self;
        let bounds = settings.connections.clone();
        let limits = Limits::of(Door::Throttr, bounds, &gate);
        let begin = |post, listener, deal_to, file| {
            start(&gate, &settings, limits.clone(), post, listener, deal_to, file)
        };
        let mut threads = Vec::new();
        for (_, listeners) in tcp {
            for listener in listeners {
                let post = open_post();
                threads.push(begin(post, Some(listener), Vec::new(), None));
            }
        }
        if let Some((listener, file)) = unix {
            let posts: Vec<Arc<Post>> = (0..loops()).map(|_| open_post()).collect();
            let mut door = Some((listener, file));
            for post in &posts {
                // The first one accepts for all, and its end takes the file away.
                let (listener, file) = door.take().unzip();
                let deal_to = if listener.is_some() { posts.clone() } else { Vec::new() };
                threads.push(begin(post.clone(), listener, deal_to, file));
            }
        }
        Serving::threads(threads)
    }
}

fn open_post() -> Arc<Post> {
    Arc::new(Post::new().expect("the system has eventfds left at start-up"))
}

fn start(
    gate: &Gate,
    settings: &Settings,
    limits: Arc<Limits>,
    post: Arc<Post>,
    listener: Option<Listener>,
    deal_to: Vec<Arc<Post>>,
    file: Option<SocketFile>,
) -> thread::JoinHandle<()> {
    let corridor = Corridor::new(
        gate.records.clone(),
        Hall::of(gate),
        Floor::new(post),
        gate.metrics.clone(),
        settings.size,
        settings.value_max,
    );
    let parts = Parts {
        bench: Bench::new(corridor, gate.clock().clone()),
        listener,
        deal_to,
        limits,
        allow: gate.door.allow.clone(),
        idle_max: settings.idle_max,
    };
    let turning = Loop::new(parts).expect("the system has file descriptors left at start-up");
    let shutdown = gate.door.shutdown.clone();
    thread::Builder::new()
        .name("throttr".to_owned())
        .spawn(move || turning.run(&shutdown, file))
        .expect("the system has threads left at start-up")
}
