//! The server's side against slow models of the grammar and of formatting.

mod replies;
mod requests;
