//! What a broker's answer to a forwarded send, or the lack of one, means for the message.
//!
//! Pure, and the whole table in one place (`docs/DESIGN.md`, section 6). Called for each try.

use crate::remoting::code::response;
use crate::remoting::command::Command;
use crate::upstream::UpstreamError;

/// What becomes of a message after a try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// A broker has it: complete.
    Stored {
        /// The code, where a flush or replica was not confirmed (10, 11, 12). Sending it again
        /// would store it twice.
        lesser: Option<&'static str>,
    },
    /// Nothing is wrong with the message: its lane waits a moment and sends it again, for ever.
    RetryLane {
        /// Metric label.
        why: &'static str,
        /// Whether the broker said that it has too much to do.
        busy: bool,
        /// For the log.
        words: String,
    },
    /// The topic has fewer queues than when the message was accepted.
    OtherQueue,
    /// The broker refuses this message; others of its lane may pass.
    RetrySlowly {
        /// Response code.
        code: i32,
        /// The broker's words.
        words: String,
    },
}

/// Judges the outcome of one try.
pub fn judge(outcome: &Result<Command, UpstreamError>) -> Judgement {
    let answer = match outcome {
        Ok(answer) => answer,
        Err(err) => {
            return Judgement::RetryLane {
                why: match err {
                    UpstreamError::Connect { .. } => "connect",
                    UpstreamError::Closed { .. } => "closed",
                    UpstreamError::Timeout { .. } => "timeout",
                },
                busy: false,
                words: err.to_string(),
            };
        }
    };
    let code = answer.header.code;
    let remark = || {
        let remark = answer.header.remark.as_deref().unwrap_or_default();
        String::from_utf8_lossy(remark).into_owned()
    };
    let retry =
        |why, busy| Judgement::RetryLane { why, busy, words: format!("code {code}: {}", remark()) };
    match code {
        response::SUCCESS => Judgement::Stored { lesser: None },
        response::FLUSH_DISK_TIMEOUT => Judgement::Stored { lesser: Some("10") },
        response::SLAVE_NOT_AVAILABLE => Judgement::Stored { lesser: Some("11") },
        response::FLUSH_SLAVE_TIMEOUT => Judgement::Stored { lesser: Some("12") },
        response::SYSTEM_BUSY => retry("busy", true),
        response::SERVICE_NOT_AVAILABLE => retry("unavailable", false),
        response::SYSTEM_ERROR if says_busy(&remark()) => retry("busy", true),
        response::SYSTEM_ERROR if says_illegal_queue(&remark()) => Judgement::OtherQueue,
        response::SYSTEM_ERROR
        | response::MESSAGE_ILLEGAL
        | response::NO_PERMISSION
        | response::TOPIC_NOT_EXIST
        | response::SUBSCRIPTION_GROUP_NOT_EXIST => {
            Judgement::RetrySlowly { code, words: remark() }
        }
        _ => retry("code", false),
    }
}

/// Code 1 is also how 4.x brokers say "not now": `[PC_SYNCHRONIZED]broker busy`, `create mapped file
/// failed, server is busy or broken`, and the flow control remarks that other releases send with 2.
fn says_busy(remark: &str) -> bool {
    const FLOW_CONTROL: [&str; 5] = [
        "[REJECTREQUEST]",
        "[OVERLOAD]",
        "[TIMEOUT_CLEAN_QUEUE]",
        "[PCBUSY_CLEAN_QUEUE]",
        "[PC_SYNCHRONIZED]",
    ];
    let lower = remark.to_ascii_lowercase();
    lower.contains("busy")
        || lower.contains("broker unable to service")
        || FLOW_CONTROL.iter().any(|mark| remark.contains(mark))
}

/// `request queueId[9] is illegal, TopicConfig[...] Producer: ...`
fn says_illegal_queue(remark: &str) -> bool {
    remark.contains("queueId") && remark.contains("illegal")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;
    use crate::remoting::frame::SerializeType;
    use crate::remoting::header::Header;

    fn answer(code: i32, remark: &str) -> Result<Command, UpstreamError> {
        Ok(Command {
            serialize: SerializeType::Json,
            header: Header {
                code,
                remark: (!remark.is_empty()).then(|| Bytes::copy_from_slice(remark.as_bytes())),
                ..Header::default()
            },
            body: Bytes::new(),
        })
    }

    fn stored(lesser: Option<&'static str>) -> Judgement {
        Judgement::Stored { lesser }
    }

    fn lane(why: &'static str, busy: bool, words: &str) -> Judgement {
        Judgement::RetryLane { why, busy, words: words.to_owned() }
    }

    fn slowly(code: i32, words: &str) -> Judgement {
        Judgement::RetrySlowly { code, words: words.to_owned() }
    }

    #[test]
    fn every_code_of_the_table() {
        let table = [
            (0, "", stored(None)),
            (10, "", stored(Some("10"))),
            (11, "", stored(Some("11"))),
            (12, "", stored(Some("12"))),
            (2, "[OVERLOAD]x", lane("busy", true, "code 2: [OVERLOAD]x")),
            (2, "", lane("busy", true, "code 2: ")),
            (14, "full", lane("unavailable", false, "code 14: full")),
            (215, "", lane("code", false, "code 215: ")),
            (3, "", lane("code", false, "code 3: ")),
            (-1, "", lane("code", false, "code -1: ")),
            (i32::MAX, "", lane("code", false, "code 2147483647: ")),
            (13, "too long", slowly(13, "too long")),
            (16, "", slowly(16, "")),
            (17, "not exist", slowly(17, "not exist")),
            (26, "", slowly(26, "")),
            (1, "", slowly(1, "")),
            (1, "AclException: no", slowly(1, "AclException: no")),
        ];
        for (code, remark, expected) in table {
            assert_eq!(judge(&answer(code, remark)), expected, "{code} {remark}");
        }
    }

    #[test]
    fn code_1_is_read_by_its_words() {
        let busy = [
            "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
            "create mapped file failed, server is busy or broken.",
            "broker unable to service, until 2026-01-01",
            "[TIMEOUT_CLEAN_QUEUE]broker queue wait time: 201ms",
            "[REJECTREQUEST]system",
        ];
        for remark in busy {
            let words = format!("code 1: {remark}");
            assert_eq!(judge(&answer(1, remark)), lane("busy", true, &words));
        }
        let illegal = "request queueId[9] is illegal, TopicConfig [topicName=T, readQueueNums=4]";
        assert_eq!(judge(&answer(1, illegal)), Judgement::OtherQueue);
        assert_eq!(judge(&answer(13, illegal)), slowly(13, illegal));
        let topic = "The specified topic[a b] contains illegal characters";
        assert_eq!(judge(&answer(1, topic)), slowly(1, topic));
    }

    #[test]
    fn no_answer_is_never_the_messages_fault() {
        let address = || "10.0.0.1:10911".to_owned();
        let connect = UpstreamError::Connect { address: address(), why: "refused".to_owned() };
        let closed = UpstreamError::Closed { address: address(), why: "reset".to_owned() };
        let timeout = UpstreamError::Timeout { address: address(), after: Duration::from_secs(3) };
        for (err, why) in [(connect, "connect"), (closed, "closed"), (timeout, "timeout")] {
            let words = err.to_string();
            assert_eq!(judge(&Err(err)), lane(why, false, &words));
        }
    }
}
