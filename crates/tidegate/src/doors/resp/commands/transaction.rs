//! MULTI, EXEC and DISCARD. EXEC runs its commands in order; other connections may come between.

use tidegate_wire::resp::{Parser, reply};

use super::{Call, Flow};

/// The most commands of one transaction.
pub(in crate::doors::resp) const COMMANDS_MAX: usize = 1024;
/// The most bytes that their requests have together.
pub(in crate::doors::resp) const BYTES_MAX: usize = 4 << 20;

/// Commands that wait for EXEC.
#[derive(Default)]
pub(in crate::doors::resp) struct Transaction {
    /// Their requests, one behind the other.
    requests: Vec<u8>,
    commands: usize,
    /// One of them was wrong: EXEC runs none.
    is_broken: bool,
}

impl Transaction {
    /// Adds a request, if there is room for it.
    pub(in crate::doors::resp) fn add(&mut self, request: &[u8]) -> bool {
        let fits = self.commands < COMMANDS_MAX && self.requests.len() + request.len() <= BYTES_MAX;
        if fits {
            self.requests.extend_from_slice(request);
            self.commands += 1;
        }
        fits
    }

    /// How many bytes are taken for its requests.
    pub(in crate::doors::resp) fn room(&self) -> usize {
        self.requests.capacity()
    }

    /// Has EXEC run nothing.
    pub(in crate::doors::resp) fn break_off(&mut self) {
        self.is_broken = true;
        self.requests = Vec::new();
    }
}

/// Commands of a transaction that EXEC runs, as though they came from the socket now.
#[derive(Default)]
pub(in crate::doors::resp) struct Execution {
    pub(in crate::doors::resp) requests: Vec<u8>,
    /// So many bytes of them are done.
    pub(in crate::doors::resp) done: usize,
    pub(in crate::doors::resp) parser: Parser,
}

/// `MULTI`
pub(super) fn multi(call: &mut Call<'_>) -> Flow {
    if call.client.transaction.is_some() {
        return call.error("ERR MULTI calls can not be nested");
    }
    call.client.transaction = Some(Transaction::default());
    call.ok()
}

/// `EXEC`
pub(super) fn exec(call: &mut Call<'_>) -> Flow {
    let Some(transaction) = call.client.transaction.take() else {
        return call.error("ERR EXEC without MULTI");
    };
    if transaction.is_broken {
        return call.error("EXECABORT Transaction discarded because of previous errors.");
    }
    reply::array(call.out, transaction.commands);
    if transaction.commands > 0 {
        call.client.execution =
            Some(Box::new(Execution { requests: transaction.requests, ..Execution::default() }));
    }
    Flow::Done
}

impl Call<'_> {
    /// Answers as Redis does to an EXEC with arguments: nothing is run, and nothing waits any more.
    pub(in crate::doors::resp) fn abort_transaction(&mut self, command: &str) -> Flow {
        self.client.transaction = None;
        let why = format!("wrong number of arguments for '{command}' command");
        self.bad_input("arity", &format!("EXECABORT Transaction discarded because of: {why}"))
    }
}

/// `DISCARD`
pub(super) fn discard(call: &mut Call<'_>) -> Flow {
    if call.client.transaction.take().is_none() {
        return call.error("ERR DISCARD without MULTI");
    }
    call.ok()
}
