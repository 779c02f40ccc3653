//! The stages of stopping, as one value that every task watches.

use tokio::sync::watch;

/// How far the stop has come. Stages only move forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Serving.
    Running,
    /// The name-server port is closed; broker ports still serve (`--lame-duck`).
    LameDuck,
    /// No new frames are read; what was accepted is answered.
    Draining,
    /// The grace period is over: connections are cut.
    Cut,
}

/// Moves the stages on. Held by the composition root alone.
#[derive(Debug)]
pub struct Stop(watch::Sender<Stage>);

/// Sees the stages. Clones see the same.
#[derive(Debug, Clone)]
pub struct Stopping(watch::Receiver<Stage>);

/// A pair that stands at [`Stage::Running`].
pub fn stop() -> (Stop, Stopping) {
    let (sender, receiver) = watch::channel(Stage::Running);
    (Stop(sender), Stopping(receiver))
}

impl Stop {
    /// Moves on to `stage`; never back.
    pub fn enter(&self, stage: Stage) {
        self.0.send_if_modified(|now| {
            let forward = stage > *now;
            if forward {
                *now = stage;
            }
            forward
        });
    }
}

impl Stopping {
    /// Returns once `stage` or a later one is reached. A dropped [`Stop`] counts as the last stage.
    pub async fn reached(&mut self, stage: Stage) {
        // An error means that the sender is gone, which ends every wait.
        drop(self.0.wait_for(|now| *now >= stage).await);
    }

    /// The stage now.
    pub fn stage(&self) -> Stage {
        *self.0.borrow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stages_move_forward_only() {
        let (stop, mut stopping) = stop();
        stop.enter(Stage::Draining);
        stop.enter(Stage::LameDuck);
        assert_eq!(stopping.stage(), Stage::Draining);
        stopping.reached(Stage::LameDuck).await;
        drop(stop);
        stopping.reached(Stage::Cut).await;
    }
}
