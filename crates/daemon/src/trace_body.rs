//! The body of `/v1/trace`: a subscription that ends when its reader goes, or the server.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};

use blockwork_insight::trace::{Batch, Subscription, TextMerge};

/// In which form a trace is sent.
pub(crate) enum Form {
    /// Records, version 7; those of several workers interleaved, each with its worker's number.
    Binary,
    /// Lines as blkparse prints them.
    Text(TextMerge),
}

/// See the module's head.
pub(crate) struct TraceBody {
    pub(crate) subscription: Subscription,
    pub(crate) form: Form,
}

impl TraceBody {
    fn encode(&mut self, batches: Vec<Batch>) -> Vec<u8> {
        match &mut self.form {
            Form::Binary => batches.into_iter().flat_map(|batch| batch.bytes).collect(),
            Form::Text(text) => text.push(&batches).expect("our own batches hold whole records").into_bytes(),
        }
    }
}

impl Body for TraceBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            let Some(batches) = std::task::ready!(self.subscription.poll_receive(cx)) else {
                return Poll::Ready(None);
            };
            let bytes = self.encode(batches);
            // Notes alone make no text.
            if !bytes.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(bytes.into()))));
            }
        }
    }
}
