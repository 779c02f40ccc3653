//! What clients were promised, what the broker saw, and whether that fits.
//!
//! Rules: every acknowledged message came; none before its time; each as it was sent; none twice,
//! except where policy P7 allows it: at a crash what was in flight at the broker, and what was
//! completed within the 5 ms before. So of a message that came again the broker's first answer must
//! have left after a kill, or no more than 5 ms and some slack before it (much for one message, less
//! for half of them, as no test may depend on how busy a machine is); or while the log stood
//! still, which shows in holds that were not acknowledged any more: a record that has to wait for a
//! sync is not written before that sync ends. A proxy killed while it started is asked nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard};

use rocketmq_timer_proxy::clock::{Clock, EpochMs, SystemClock};
use rocketmq_timer_proxy::remoting::command::Command;
use rocketmq_timer_proxy::remoting::properties::{Properties, name};

use crate::plan::{Kind, Plan};
use crate::support::peer::Seen;

/// How long a completion may wait for its record (P7).
pub(crate) const RECORDED_WITHIN_MS: i64 = 5;
/// On top of that: the way of an answer to the proxy, and processes that wait for their turn on a
/// busy machine, at each of the four threads on that way.
pub(crate) const SLACK_MS: i64 = 1_000;
/// What half of those that come again stay within: stalls are rare, so that one of them excuses few.
pub(crate) const USUAL_SLACK_MS: i64 = 250;
/// Below so many that came again their median says nothing.
const ENOUGH: usize = 20;
/// Complaints shown of each kind.
const SHOWN: usize = 5;

/// The account of one run.
pub(crate) struct Ledger {
    pub(crate) seed: u64,
    pub(crate) clock: SystemClock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    kills: Vec<Kill>,
    strangers: Vec<String>,
}

struct Entry {
    plan: Plan,
    /// Which run of the proxy it was sent to.
    run: usize,
    answer: Option<Answer>,
    answer_at_ms: EpochMs,
    arrivals: Vec<Arrival>,
    altered: Option<String>,
}

/// What the client was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Code 0 and an id with bit 62: the proxy has it.
    Held,
    /// Code 0 and any other id: the broker has it.
    Relayed,
    Refused(i32),
}

/// An end without a goodbye.
#[derive(Debug, Clone, Copy)]
struct Kill {
    at_ms: EpochMs,
    /// The run that clients were connected to; `None` while it was starting.
    run: Option<usize>,
}

/// One time that the broker saw a message.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    at_ms: EpochMs,
    /// When the broker's answer left.
    answered_ms: EpochMs,
}

/// What is wrong, and counts.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) sent: usize,
    pub(crate) held: usize,
    pub(crate) relayed: usize,
    pub(crate) refused: usize,
    /// Sends whose answer a crash took; they may come or not.
    pub(crate) unanswered: usize,
    /// Of these, the ones that came.
    pub(crate) unanswered_came: usize,
    pub(crate) arrivals: usize,
    /// Arrivals after the first of a message that P7 allows.
    pub(crate) allowed: usize,
    /// Messages that the crashes could have made come again, all kills together.
    pub(crate) at_risk: usize,
    /// Of those that came again: from the broker's answer to the kill, sorted; negative where the
    /// answer was still to come.
    pub(crate) ages_ms: Vec<i64>,
    pub(crate) lost: Vec<String>,
    pub(crate) early: Vec<String>,
    pub(crate) altered: Vec<String>,
    /// Came again although P7 does not allow it.
    pub(crate) doubled: Vec<String>,
    /// Came although nobody sent it.
    pub(crate) strangers: Vec<String>,
}

impl Ledger {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, clock: SystemClock::new(), state: Mutex::default() }
    }

    /// Plans the next message, to be sent at once to this run of the proxy.
    pub(crate) fn next(&self, run: usize) -> Plan {
        self.plan(run, |number, now_ms| Plan::new(self.seed, number, now_ms))
    }

    /// The same for a message with this due time.
    pub(crate) fn next_due_at(&self, run: usize, due_ms: EpochMs) -> Plan {
        self.plan(run, |number, now_ms| Plan::due_at(self.seed, number, now_ms, due_ms))
    }

    fn plan(&self, run: usize, plan: impl FnOnce(u64, EpochMs) -> Plan) -> Plan {
        let mut state = self.lock();
        let plan = plan(state.entries.len() as u64, self.clock.wall_ms());
        state.entries.push(Entry {
            plan,
            run,
            answer: None,
            answer_at_ms: 0,
            arrivals: Vec::new(),
            altered: None,
        });
        plan
    }

    pub(crate) fn answered(&self, number: u64, answer: Answer) {
        let mut state = self.lock();
        let entry = &mut state.entries[number as usize];
        assert_eq!(entry.answer.replace(answer), None, "answered twice: {}", entry.plan.key());
        entry.answer_at_ms = self.clock.wall_ms();
    }

    /// The broker saw a send, and answers it so much later.
    pub(crate) fn arrived(&self, seen: &Seen, answer_after_ms: i64) {
        self.arrived_at(&seen.request, seen.at_ms, answer_after_ms);
    }

    pub(crate) fn arrived_at(&self, request: &Command, at_ms: EpochMs, answer_after_ms: i64) {
        let ext = |key: &str| request.header.ext.get(key);
        let properties = ext("i").or_else(|| ext("properties")).cloned().unwrap_or_default();
        let key = Properties::new(&properties).get(name::UNIQ_KEY).unwrap_or_default();
        let key = String::from_utf8_lossy(key);
        let mut state = self.lock();
        let entry = Plan::number_in(self.seed, &key)
            .and_then(|number| state.entries.get_mut(usize::try_from(number).ok()?));
        let Some(entry) = entry else {
            state.strangers.push(format!("{key:?} at {at_ms}"));
            return;
        };
        entry.arrivals.push(Arrival { at_ms, answered_ms: at_ms + answer_after_ms });
        if let Some(difference) = difference(&entry.plan.delivered(), request) {
            entry.altered = Some(difference);
        }
    }

    /// The proxy is about to be killed, in this run unless it is only starting.
    pub(crate) fn killed(&self, run: Option<usize>) {
        self.killed_at(self.clock.wall_ms(), run);
    }

    pub(crate) fn killed_at(&self, at_ms: EpochMs, run: Option<usize>) {
        self.lock().kills.push(Kill { at_ms, run });
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let state = self.lock();
        let mut verdict = Verdict { strangers: state.strangers.clone(), ..Verdict::default() };
        let kills = state.kills();
        for entry in &state.entries {
            verdict.add(entry, &kills);
        }
        verdict.judge_ages();
        verdict
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl State {
    /// Each kill, and by when what the broker had answered had to be recorded then.
    fn kills(&self) -> Vec<(EpochMs, EpochMs)> {
        let before = std::iter::once(EpochMs::MIN / 2).chain(self.kills.iter().map(|k| k.at_ms));
        let kills = self.kills.iter().zip(before);
        kills.map(|(kill, before)| (kill.at_ms, self.recorded_until(kill, before))).collect()
    }

    fn recorded_until(&self, kill: &Kill, before: EpochMs) -> EpochMs {
        let last = kill.at_ms - RECORDED_WITHIN_MS;
        let Some(run) = kill.run else {
            return before;
        };
        // When the latest hold left that was acknowledged: what had ended by then went out with it.
        let (mut known, mut waiting) = (before, false);
        let of_run = |entry: &&Entry| entry.run == run && entry.plan.kind != Kind::Plain;
        for entry in self.entries.iter().filter(of_run) {
            match entry.answer {
                Some(_) if entry.answer_at_ms <= kill.at_ms => {
                    known = known.max(entry.plan.sent_ms)
                }
                _ => waiting = true,
            }
        }
        if waiting { known.min(last) - SLACK_MS } else { last - SLACK_MS }
    }
}

impl Verdict {
    /// Fails with all that is wrong.
    pub(crate) fn assert_clean(&self) {
        let faults = self.faults();
        assert!(faults.is_empty(), "{self}\n{faults:#?}");
    }

    /// What is wrong, by rule.
    pub(crate) fn faults(&self) -> BTreeMap<&'static str, Vec<String>> {
        let rules = [
            ("lost", &self.lost),
            ("early", &self.early),
            ("altered", &self.altered),
            ("doubled", &self.doubled),
            ("strangers", &self.strangers),
        ];
        let broken = rules.into_iter().filter(|(_, found)| !found.is_empty());
        broken
            .map(|(rule, found)| {
                let mut shown = vec![format!("{} messages", found.len())];
                shown.extend(found.iter().take(SHOWN).cloned());
                (rule, shown)
            })
            .collect()
    }

    /// Records that are late as a rule, and not by one stall.
    fn judge_ages(&mut self) {
        self.ages_ms.sort_unstable();
        let half = self.ages_ms.get(self.ages_ms.len() / 2);
        if let Some(age) = half.filter(|age| **age > RECORDED_WITHIN_MS + USUAL_SLACK_MS)
            && self.ages_ms.len() >= ENOUGH
        {
            self.doubled.push(format!(
                "{} came again, half of them answered {age} ms or more before the kill",
                self.ages_ms.len()
            ));
        }
    }

    /// `kills`: when, and by when an answer had to be recorded then.
    fn add(&mut self, entry: &Entry, kills: &[(EpochMs, EpochMs)]) {
        self.sent += 1;
        match entry.answer {
            Some(Answer::Held) => self.held += 1,
            Some(Answer::Relayed) => self.relayed += 1,
            Some(Answer::Refused(_)) => self.refused += 1,
            None => {
                self.unanswered += 1;
                self.unanswered_came += usize::from(!entry.arrivals.is_empty());
            }
        }
        self.arrivals += entry.arrivals.len();
        let Plan { kind, .. } = entry.plan;
        let (key, due_ms) = (entry.plan.key(), entry.plan.due_ms());
        let promised = matches!(entry.answer, Some(Answer::Held | Answer::Relayed));
        if promised && entry.arrivals.is_empty() {
            self.lost.push(format!("{key} {kind:?} due {due_ms} {:?}", entry.answer));
        }
        for arrival in &entry.arrivals {
            let early = due_ms - arrival.at_ms;
            if early > 0 {
                self.early.push(format!("{key} {kind:?} due {due_ms}, {early} ms early"));
            }
            let risky = kills.iter().any(|kill| arrival.could_be_missed_by(*kill));
            self.at_risk += usize::from(risky);
        }
        if let Some(difference) = &entry.altered {
            self.altered.push(format!("{key} {kind:?}: {difference}"));
        }
        // What is relayed is never sent again by the proxy.
        let may_repeat = kind != Kind::Plain && entry.answer != Some(Answer::Relayed);
        for pair in entry.arrivals.windows(2) {
            let [first, again] = pair else { continue };
            let kills = kills.iter().filter(|(at_ms, _)| *at_ms <= again.at_ms);
            let causes = kills.clone().filter(|kill| first.could_be_missed_by(**kill));
            // Where several kills come into question, the nearest.
            let ages = causes.map(|(at_ms, _)| at_ms - first.answered_ms);
            let age = ages.min_by_key(|age| age.abs());
            match age.filter(|_| may_repeat) {
                Some(age) => {
                    self.allowed += 1;
                    self.ages_ms.push(age);
                }
                None => self.doubled.push(format!(
                    "{key} {kind:?} due {due_ms} {:?}, at {} and {}, kills (and what was recorded then) {:?}",
                    entry.answer,
                    first.at_ms,
                    again.at_ms,
                    kills.filter(|(at_ms, _)| *at_ms >= first.at_ms).collect::<Vec<_>>()
                )),
            }
        }
    }
}

impl Arrival {
    /// Whether a crash could find it not recorded. It may come in after the kill: from the kernel,
    /// which still sends what the proxy had written.
    fn could_be_missed_by(&self, (at_ms, recorded_until): (EpochMs, EpochMs)) -> bool {
        self.at_ms <= at_ms + SLACK_MS && self.answered_ms >= recorded_until
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, held, relayed, refused, unanswered, .. } = self;
        let Self { arrivals, allowed, at_risk, .. } = self;
        write!(
            f,
            "{sent} sent: {held} held, {relayed} relayed, {refused} refused, {unanswered} \
             unanswered; {arrivals} arrivals; {allowed} came again of {at_risk} at risk"
        )?;
        let ages = &self.ages_ms;
        match (ages.get(ages.len() / 2), ages.last()) {
            (Some(half), Some(last)) => {
                write!(
                    f,
                    ", answered up to {last} ms before the kill, half of them up to {half} ms"
                )
            }
            _ => Ok(()),
        }
    }
}

/// How a request differs from the one expected, opaques apart.
fn difference(expected: &Command, request: &Command) -> Option<String> {
    let (header, other) = (&expected.header, &request.header);
    let ext = |command: &Command| {
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        let pairs = command.header.ext.iter();
        pairs.map(|(key, value)| (text(key), text(value))).collect::<Vec<_>>()
    };
    if (header.code, header.version, &header.language)
        != (other.code, other.version, &other.language)
    {
        return Some(format!("code {}, expected {}", other.code, header.code));
    }
    if header.ext != other.ext {
        return Some(format!("ext {:?}, expected {:?}", ext(request), ext(expected)));
    }
    (expected.body != request.body).then(|| {
        format!("a body of {} bytes, expected {}", request.body.len(), expected.body.len())
    })
}
