//! One client of Envoy that makes the buckets of all clients long.

use super::{Unassigned, ask, of, start_beside};
use crate::engines::until;
use crate::program::Program;
use crate::upstream::Upstream;

/// As long as Envoy takes them: it refuses 60 KiB of headers.
const VALUE_BYTES: usize = 58 << 10;
/// Together they are longer than a message may be.
const VALUES: usize = 80;

/// While the server is away nobody tells Envoy to forget a bucket, and then it reports all of them
/// in one message.
#[test]
fn long_values_do_not_end_the_quotas_of_other_clients() {
    let config = "[grpc]\nunix = 'grpc.sock'\n";
    let program = Program::serve(config);
    let app = Upstream::start();
    // The socket of a server that comes back is in its folder.
    let socket = program.folder().join("grpc.sock");
    let envoy = start_beside(app.address(), &socket, Unassigned::Denied);
    until(|| ask(&envoy, &of("first")).status() == 204);
    let folder = program.crash();
    for number in 0..VALUES {
        let long = format!("{number:0VALUE_BYTES$}");
        assert_eq!(ask(&envoy, &of(&long)).status(), 429, "it has no assignment");
    }
    let mut program = Program::start_in(folder, config, "");
    program.wait_until_ready();
    until(|| ask(&envoy, &of("second")).status() == 204);
    assert_eq!(ask(&envoy, &of(&"long".repeat(VALUE_BYTES / 4))).status(), 429);
    until(|| ask(&envoy, &of("third")).status() == 204);
}
