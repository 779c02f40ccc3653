//! Health, metrics and counts over HTTP; never on the hot path.
