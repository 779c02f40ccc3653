//! The name-server facade: answers route queries with our listeners in place of the brokers.

pub mod endpoints;
pub mod facade;
pub mod routes;
