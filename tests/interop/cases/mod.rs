//! The cases, one file for each rule or group of rules.

mod arrival;
mod borders;
mod control;
mod crash;
mod identity;
mod kinds;
mod order;
mod refusals;
mod residue;
