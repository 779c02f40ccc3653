//! One try of one message: the request it becomes, its way over a connection, and what came of it.
//!
//! Looks at the clock once more before it sends. Called by [`super::courier`] and [`super::alone`];
//! never decides what happens next; that is [`super::dispatcher`]'s.

use std::time::Duration;

use tokio::time::Instant;

use super::answer::{Judgement, judge};
use super::forward;
use super::lane::Try;
use crate::clock::Clock;
use crate::remoting::command::Command;
use crate::store::{Held, ReadError};
use crate::upstream::UpstreamError;
use crate::upstream::client::{Answer, Client, Request, Silence};

/// How long a broker has for its answer.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// One message to try.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) tried: Try,
    /// The queue to use in place of the one asked for.
    pub(super) queue: Option<i32>,
    /// Whether it goes over a connection of its own.
    pub(super) alone: bool,
}

impl Job {
    pub(super) fn bytes(&self) -> usize {
        self.tried.due.len as usize
    }
}

/// What came of a job.
#[derive(Debug, Clone)]
pub(super) enum Fate {
    /// It was sent, and this is what the outcome means.
    Judged {
        judgement: Judgement,
        /// From the due time until it was handed to the socket.
        late: Duration,
    },
    /// The broker answered on a connection, was sent this message alone on it, and closed it.
    HungUp { words: String },
    /// The broker could not be reached; nothing was sent.
    Unreachable { why: &'static str, words: String },
    /// By the wall clock it is not due any more; nothing was sent.
    Early,
    /// What the store has of it is not a message; nothing was sent.
    Unreadable { words: String },
    /// The process is stopping; nothing was sent.
    NotStarted,
}

/// What to send for a message, as it was read.
pub(super) fn request(held: &Result<Held, ReadError>, job: &Job) -> Result<Command, Fate> {
    let request = match held {
        Ok(held) => forward::command(held, job.queue).map_err(|err| err.to_string()),
        Err(err) => Err(err.to_string()),
    };
    request.map_err(|words| Fate::Unreadable { words })
}

/// Sends, and waits for the answer. The first poll hands the request over, so tries are written in
/// the order they are polled.
pub(super) async fn deliver(
    client: &Client,
    job: &Job,
    request: Command,
    clock: &dyn Clock,
) -> Fate {
    let late_ms = clock.wall_ms().saturating_sub(job.tried.due.due_ms);
    let Ok(late_ms) = u64::try_from(late_ms) else {
        return Fate::Early;
    };
    let handed = Instant::now();
    let outcome = answered(client, request).await;
    if let Err(err @ UpstreamError::Closed { .. }) = &outcome
        && job.alone
    {
        return Fate::HungUp { words: err.to_string() };
    }
    let written = outcome.as_ref().map_or(handed, |answer| answer.written);
    Fate::Judged {
        judgement: judge(&outcome.map(Answer::into_command)),
        late: Duration::from_millis(late_ms) + written.saturating_duration_since(handed),
    }
}

async fn answered(client: &Client, request: Command) -> Result<Answer, UpstreamError> {
    let request = Request::Command(request);
    let in_flight = client.start(request, ANSWER_WITHIN, Silence::Ends).await?;
    in_flight.answer().await
}
