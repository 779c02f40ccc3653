//! The whole proxy in this process: clients on raw frames on one side, scripted name servers and
//! brokers on the other, the clock in the test's hand.

mod forwarded;
mod garbage;
mod listeners;
mod outage;
mod pages;
mod refusals;
mod relayed;
mod rig;
mod time;
mod troubles;
