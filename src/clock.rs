//! The two clocks: wall time decides what is due, monotonic time measures waits and latencies.
//!
//! Nothing else in the crate reads a clock. Tests run on [`ManualClock`], so that hours pass in no
//! time and a wall clock that jumps is an ordinary input.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// Milliseconds since the Unix epoch, by the wall clock. Negative before 1970.
pub type EpochMs = i64;

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// Wall time, rounded down to the millisecond: a due time `d` is reached when `d <= wall_ms()`.
    fn wall_ms(&self) -> EpochMs;
    /// Time since an arbitrary fixed point; never goes back.
    fn monotonic(&self) -> Duration;
    /// A new alarm for one thread that waits for wall times.
    fn alarm(&self) -> std::io::Result<Arc<dyn Alarm>>;
}

/// Lets one thread sleep until a wall time, woken early by [`Alarm::ring`] or a clock that was set.
pub trait Alarm: Send + Sync {
    /// Returns when the wall clock has reached `until` (`None`: never), when it was set, or when
    /// [`Alarm::ring`] was called since the last wait. Early returns are allowed; callers look at
    /// the clock again.
    fn wait(&self, until: Option<EpochMs>);
    /// Wakes the waiting thread, or makes its next wait return at once.
    fn ring(&self);
}

// === SystemClock ===

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time counts from now.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's clocks")]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's clocks")]
    fn wall_ms(&self) -> EpochMs {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            // Rounded away from zero: before 1970 too, a millisecond is reached only when complete.
            Err(before) => {
                let ms = before.duration().as_nanos().div_ceil(1_000_000);
                i64::try_from(ms).map_or(i64::MIN, |ms| -ms)
            }
        }
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn alarm(&self) -> std::io::Result<Arc<dyn Alarm>> {
        Ok(Arc::new(SystemAlarm::new()?))
    }
}

/// A `timerfd` on the real-time clock beside an `eventfd`.
///
/// The kernel fires the timer within tens of microseconds of its absolute time and cancels it when
/// the wall clock is set, so neither precision nor a clock step needs polling.
struct SystemAlarm {
    timer: OwnedFd,
    bell: OwnedFd,
}

impl SystemAlarm {
    fn new() -> std::io::Result<Self> {
        let timer = timerfd_create(
            TimerfdClockId::Realtime,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { timer, bell })
    }

    fn arm(&self, until: Option<EpochMs>) -> std::io::Result<()> {
        // A value of zero would disarm the timer, and with it the notice of a clock that was set.
        let at = until.unwrap_or(i64::MAX / 2_000_000).max(1);
        let value =
            Timespec { tv_sec: at.div_euclid(1000), tv_nsec: at.rem_euclid(1000) * 1_000_000 };
        let interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(
            &self.timer,
            TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET,
            &Itimerspec { it_interval: interval, it_value: value },
        )?;
        Ok(())
    }
}

impl Alarm for SystemAlarm {
    fn wait(&self, until: Option<EpochMs>) {
        if let Err(err) = self.arm(until) {
            tracing::error!(%err, "timerfd_settime failed; waiting 1 ms instead");
            std::thread::sleep(Duration::from_millis(1));
            return;
        }
        let mut fds =
            [PollFd::new(&self.timer, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
        // A failed poll (a signal) is an early return, which callers expect.
        if poll(&mut fds, None).is_ok() && !fds[1].revents().is_empty() {
            let mut count = [0; 8];
            // Only the wake-up matters, not how often the bell was rung.
            let _drained = rustix::io::read(&self.bell, &mut count);
        }
    }

    fn ring(&self) {
        // The only failure is a full counter, and then the bell is already ringing.
        let _rung = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

// === ManualClock ===

/// A clock that moves only when told to. Cloning gives another hand on the same clock.
#[derive(Clone)]
pub struct ManualClock {
    shared: Arc<ManualTime>,
}

struct ManualTime {
    wall_ms: AtomicI64,
    monotonic_us: AtomicU64,
    alarms: Mutex<Vec<Arc<ManualAlarm>>>,
}

impl ManualClock {
    /// A clock that stands at `wall_ms`.
    pub fn new(wall_ms: EpochMs) -> Self {
        let shared = ManualTime {
            wall_ms: AtomicI64::new(wall_ms),
            monotonic_us: AtomicU64::new(0),
            alarms: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Both clocks move on by `by`.
    pub fn advance(&self, by: Duration) {
        let us = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.shared.monotonic_us.fetch_add(us, Ordering::SeqCst);
        let ms = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.set_wall(self.wall_ms().saturating_add(ms));
    }

    /// The wall clock is set, forward or back; the monotonic clock does not notice.
    pub fn set_wall(&self, wall_ms: EpochMs) {
        self.shared.wall_ms.store(wall_ms, Ordering::SeqCst);
        for alarm in self.shared.alarms.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            alarm.ring();
        }
    }
}

impl Clock for ManualClock {
    fn wall_ms(&self) -> EpochMs {
        self.shared.wall_ms.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.shared.monotonic_us.load(Ordering::SeqCst))
    }

    fn alarm(&self) -> std::io::Result<Arc<dyn Alarm>> {
        let alarm = Arc::new(ManualAlarm {
            time: Arc::downgrade(&self.shared),
            rung: Mutex::new(false),
            bell: Condvar::new(),
        });
        self.shared.alarms.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&alarm));
        Ok(alarm)
    }
}

struct ManualAlarm {
    time: std::sync::Weak<ManualTime>,
    rung: Mutex<bool>,
    bell: Condvar,
}

impl Alarm for ManualAlarm {
    fn wait(&self, until: Option<EpochMs>) {
        let reached = || {
            let now = self.time.upgrade().map(|time| time.wall_ms.load(Ordering::SeqCst));
            matches!((now, until), (Some(now), Some(until)) if until <= now)
        };
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        while !*rung && !reached() {
            rung = self.bell.wait(rung).unwrap_or_else(PoisonError::into_inner);
        }
        *rung = false;
    }

    fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_alarm_returns_at_its_time_and_when_rung() {
        let clock = SystemClock::new();
        let alarm = clock.alarm().unwrap();
        let until = clock.wall_ms() + 20;
        while clock.wall_ms() < until {
            alarm.wait(Some(until));
        }
        alarm.ring();
        alarm.wait(None);
        alarm.wait(Some(0));
        alarm.wait(Some(-5));
    }

    #[test]
    fn manual_alarm_wakes_when_the_clock_reaches_its_time() {
        let clock = ManualClock::new(1_000);
        let alarm = clock.alarm().unwrap();
        let seen = {
            let (clock, alarm) = (clock.clone(), Arc::clone(&alarm));
            std::thread::spawn(move || {
                while clock.wall_ms() < 5_000 {
                    alarm.wait(Some(5_000));
                }
                clock.wall_ms()
            })
        };
        clock.advance(Duration::from_secs(3));
        clock.set_wall(7_000);
        assert_eq!(seen.join().unwrap(), 7_000);
        assert_eq!(clock.monotonic(), Duration::from_secs(3));
    }
}
