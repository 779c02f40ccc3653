//! The cases, one file for each rule or group of rules.

mod after_silence;
mod arrival;
mod binary_headers;
mod borders;
mod control;
mod crash;
mod identity;
mod java_4_3_0;
mod java_5_3_3;
mod kinds;
mod mqadmin;
mod order;
mod refusals;
mod residue;
