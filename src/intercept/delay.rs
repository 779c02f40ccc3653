//! Reads the five delay properties: which one counts, and what time it asks for.
