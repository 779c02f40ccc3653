//! A reader of JSON as fastjson writes and accepts it, which remembers where everything stood.
//!
//! Used for headers (single quotes, unquoted keys) and route bodies (numeric keys without quotes),
//! which `serde_json` rightly rejects, and where rewriting must leave all other bytes alone.
