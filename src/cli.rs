//! Command-line flags to [`crate::config::Config`]; the only reader of arguments and environment.
