//! One connected client, as its requests see it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::headers::Introduction;
use super::streams::{Pulse, Socket};
use super::ticks::Deadline;
use super::tunnel::Tunnel;
use super::worker::Worker;

/// What all requests of a connection share.
pub(super) struct Client {
    pub(super) worker: Rc<Worker>,
    pub(super) pulse: Rc<Pulse>,
    pub(super) introduction: RefCell<Introduction>,
    /// What the connection goes on as once its answer is sent.
    pub(super) tunnel: Cell<Option<Tunnel>>,
    /// The deadline of the shared stream whose request is looked at, see `stalled`.
    pub(super) stream: Cell<Option<Rc<Deadline>>>,
    /// Absent where streams are shared: there, leaving is told by the protocol.
    pub(super) socket: Option<Rc<RefCell<Socket>>>,
}
