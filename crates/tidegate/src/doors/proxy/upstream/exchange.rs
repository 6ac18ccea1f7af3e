//! A request on its way to the upstream, and then its answer, in one place.
//!
//! A head is large, and one that is handed by value from future to future is copied each time.

use std::mem;

use hyper::{Request, Response};

use super::super::bodies::Upload;
use super::answer::Answer;

/// Where a request is.
pub(in super::super) struct Exchange(State);

enum State {
    /// Here, and so until it is answered, or taken to be sent.
    Request(Request<Upload>),
    /// On its way.
    Away,
    /// Back, as an answer.
    Answer(Response<Answer>),
}

impl Exchange {
    /// A request that is still to be sent.
    pub(in super::super) fn new(request: Request<Upload>) -> Self {
        Self(State::Request(request))
    }

    /// The request, before it is answered.
    pub(in super::super) fn request(&mut self) -> &mut Request<Upload> {
        let State::Request(request) = &mut self.0 else { unreachable!("it is sent already") };
        request
    }

    /// The answer, once the request was sent with success.
    pub(in super::super) fn answer(&mut self) -> &mut Response<Answer> {
        let State::Answer(answer) = &mut self.0 else { unreachable!("it has not come") };
        answer
    }

    /// As [`Self::answer`], for good.
    pub(in super::super) fn into_answer(self) -> Response<Answer> {
        let State::Answer(answer) = self.0 else { unreachable!("it has not come") };
        answer
    }

    /// Takes the request, to send it.
    pub(super) fn leave(&mut self) -> Request<Upload> {
        let State::Request(request) = mem::replace(&mut self.0, State::Away) else {
            unreachable!("it is sent already")
        };
        request
    }

    /// It is answered.
    pub(super) fn arrive(&mut self, answer: Response<Answer>) {
        self.0 = State::Answer(answer);
    }

    /// It is to be sent once more.
    pub(super) fn again(&mut self, request: Request<Upload>) {
        self.0 = State::Request(request);
    }
}
