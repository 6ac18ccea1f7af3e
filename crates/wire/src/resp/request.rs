//! The client's side of a request.

use super::reply;

/// Appends a request: an array of bulk strings, the command's name first.
pub fn request(out: &mut Vec<u8>, arguments: &[&[u8]]) {
    reply::array(out, arguments.len());
    for argument in arguments {
        reply::bulk(out, argument);
    }
}
